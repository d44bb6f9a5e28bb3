"""What a Debian package of ours says about itself, and what must not get into one."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import magnitude

ROOT = Path(__file__).resolve().parent.parent.parent
DEBIAN = ROOT / "image/debian"


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    return module("suites")


@pytest.fixture(scope="module")
def contents() -> ModuleType:
    return module("contents")


def module(name: str) -> ModuleType:
    sys.path.insert(0, str(DEBIAN))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DEBIAN))


def later(one: str, other: str) -> bool:
    return subprocess.run(["dpkg", "--compare-versions", one, "gt", other], check=False).returncode == 0


def test_a_later_version_and_the_one_for_a_later_release_are_upgrades(suites: ModuleType) -> None:
    bookworm, trixie = suites.SUITES["bookworm"], suites.SUITES["trixie"]
    versions = ["0.1.0.dev3", "0.1.0a1", "0.1.0b2", "0.1.0rc1", "0.1.0", "0.1.1", "0.10.0", "1.0"]
    packaged = [suites.package_version(version, bookworm) for version in versions]
    # Debian's order is the alphabet's behind a tilde, as Python's happens to be for all but `dev`.
    for earlier, following in pairwise(packaged[1:]):
        assert later(following, earlier), (earlier, following)
    assert later(packaged[4], packaged[0])
    assert later(suites.package_version("0.1.0", trixie), suites.package_version("0.1.0", bookworm))
    assert suites.package_version("0.1.0+ab1", bookworm) == "0.1.0+ab1-1~deb12"


@pytest.mark.parametrize("name", ["bookworm", "trixie"])
@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_control_file_names_the_interpreter_that_the_wheels_are_for(
    suites: ModuleType, name: str, architecture: str
) -> None:
    suite = suites.SUITES[name]
    text = suites.control(
        magnitude.__version__, suite, architecture, glibc=28, size_kib=7, maintainer="A Builder <a@b.example>"
    )
    fields = dict(re.findall(r"(?m)^([A-Z][\w-]+): (.*)$", text))
    assert f"python{suite.python}" in fields["Depends"].split(", ")
    assert "libc6 (>= 2.28)" in fields["Depends"]
    assert fields["Architecture"] == architecture
    assert fields["Version"].startswith(magnitude.__version__)
    assert text.endswith("\n")
    # A line of the description is at most as long as a terminal is wide.
    assert max(map(len, text[text.index("Description") :].splitlines())) <= 80


def test_pip_takes_only_wheels_that_the_release_can_load(suites: ModuleType) -> None:
    for suite in suites.SUITES.values():
        options = suites.pip_target(suite, "arm64")
        assert f"--abi=cp{suite.python.replace('.', '')}" in options
        minors = [int(found) for found in re.findall(r"manylinux_2_(\d+)_aarch64", " ".join(options))]
        assert minors == sorted(minors, reverse=True)
        assert max(minors) <= suite.glibc_minor


def elf(path: Path, machine: int, symbols: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + machine.to_bytes(2, "little") + symbols)


def test_compiled_code_for_another_machine_is_found_whatever_it_is_called(
    contents: ModuleType, suites: ModuleType, tmp_path: Path
) -> None:
    (_, x86), (_, arm) = suites.MACHINES["amd64"], suites.MACHINES["arm64"]
    elf(tmp_path / "a/right.so", arm)
    elf(tmp_path / "a/b/wrong", x86)
    (tmp_path / "a/text.so").write_text("not ELF")
    (tmp_path / "link.so").symlink_to("a/b/wrong")
    assert contents.wrong_machine(tmp_path, arm) == [tmp_path / "a/b/wrong"]


def test_the_machines_have_the_numbers_that_their_compiled_files_carry(
    contents: ModuleType, suites: ModuleType
) -> None:
    own = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    _, number = next(entry for entry in suites.MACHINES.values() if entry[0] == own)
    packages = Path(yaml.__file__).parent
    assert list(contents.elf_files(packages)), "PyYAML has compiled parts"
    assert contents.wrong_machine(packages, number) == []


def test_the_glibc_that_compiled_code_asks_for_is_read_from_it(contents: ModuleType, tmp_path: Path) -> None:
    assert contents.glibc_minor(tmp_path) == 17
    elf(tmp_path / "a.so", 183, b"\0GLIBC_2.28\0\0GLIBC_2.2.5\0GLIBCXX_3.4.29\0XGLIBC_2.99\0")
    assert contents.glibc_minor(tmp_path) == 28


def distribution(site: Path, name: str, version: str, *requires: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires)]) + "\n")


def test_what_the_packages_require_on_the_other_python_is_found_missing(contents: ModuleType, tmp_path: Path) -> None:
    distribution(
        tmp_path,
        "magnitude",
        "1.0",
        "one>=2",
        "only-later; python_version >= '3.13'",
        "only-arm; platform_machine == 'aarch64'",
        "importer; extra == 'import'",
        "tester; extra == 'dev'",
    )
    distribution(tmp_path, "One", "2.1")
    assert contents.unmet(tmp_path, "3.11", "x86_64") == [
        'magnitude requires importer; extra == "import": it is not there'
    ]
    distribution(tmp_path, "importer", "1")
    assert contents.unmet(tmp_path, "3.11", "x86_64") == []
    missing = contents.unmet(tmp_path, "3.13", "aarch64")
    assert [text.split()[2].rstrip(";") for text in missing] == ["only-arm", "only-later"]
    shutil.rmtree(tmp_path / "One-2.1.dist-info")
    distribution(tmp_path, "one", "1.9")
    assert contents.unmet(tmp_path, "3.11", "x86_64") == ["magnitude requires one>=2: version 1.9 is there"]


@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_maintainer_scripts_are_for_any_shell_and_stop_at_the_first_error(name: str) -> None:
    text = (DEBIAN / name).read_text()
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -e\n" in text
    subprocess.run(["sh", "-n", str(DEBIAN / name)], check=True)


def test_state_is_deleted_only_where_the_user_agreed() -> None:
    lines = (DEBIAN / "postrm").read_text().splitlines()
    deleting = [number for number, line in enumerate(lines) if line.strip() == 'rm -rf "$state"']
    assert len(deleting) == 1
    assert lines[deleting[0] - 1] == 'if [ "$agreed" = true ]; then'
    assert "Default: false" in (DEBIAN / "templates").read_text().splitlines()


def test_the_configuration_that_is_shipped_changes_nothing() -> None:
    from magnitude.config import Settings
    from magnitude.config.load import load_text

    assert load_text((DEBIAN / "magnitude.yaml").read_text()).settings == Settings()
