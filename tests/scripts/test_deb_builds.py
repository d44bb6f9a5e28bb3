"""The package for the other architecture, built without emulation. Takes minutes, and needs the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EM_AARCH64 = 183  # elf.h

pytestmark = pytest.mark.on_demand


def fields(package: Path) -> dict[str, str]:
    text = subprocess.run(["dpkg-deb", "--field", str(package)], capture_output=True, text=True, check=True).stdout
    lines = (line.partition(": ") for line in text.splitlines() if not line.startswith(" "))
    return {name: value for name, _, value in lines}


@pytest.mark.parametrize(("suite", "python"), [("bookworm", "3.11"), ("trixie", "3.13")])
def test_every_compiled_file_of_the_arm64_package_is_for_arm64_and_its_python(
    tmp_path: Path, suite: str, python: str
) -> None:
    build = [
        sys.executable,
        str(ROOT / "image/debian/build_deb.py"),
        f"--suite={suite}",
        f"--out={tmp_path}",
        "--fast",
    ]
    subprocess.run([*build, "arm64"], check=True)
    (package,) = tmp_path.glob("magnitude_*_arm64.deb")
    assert fields(package)["Architecture"] == "arm64"
    assert f"python{python}" in fields(package)["Depends"]
    tree = tmp_path / "tree"
    subprocess.run(["dpkg-deb", "--extract", str(package), str(tree)], check=True)
    compiled = 0
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            start = path.read_bytes()[:20]
            if start[:4] == b"\x7fELF":
                compiled += 1
                assert int.from_bytes(start[18:20], "little") == EM_AARCH64, path
            # cpython-313-aarch64-linux-gnu.so
            tag = f"cpython-{python.replace('.', '')}-"
            assert ".cpython-" not in path.name or tag in path.name, path
    assert compiled > 20
    assert (tree / "usr/lib/magnitude/bin/python3").readlink() == Path(f"../../../bin/python{python}")
    assert (tree / "usr/lib/systemd/system/magnitude.service").is_file()
    assert [path for path in tree.rglob("*") if path.name.startswith("magnitude-first-boot")] == [], (
        "it is for images"
    )
    assert list(tree.rglob("libonnxruntime.so*")) == [], "Python's module has all of it inside"
    named = list(tree.rglob("direct_url.json"))
    assert named == [], "these name folders of the machine that built it"
