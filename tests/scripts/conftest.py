"""The modules of `scripts/flash` are imported from where they lie, and disks are loop devices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))


def _why_not() -> str:
    if os.geteuid() != 0:
        return "needs root"
    if missing := [name for name in ("losetup", "mcopy", "zstd", "mkfs.ext4") if not shutil.which(name)]:
        return f"{', '.join(missing)} not found: run scripts/system-test-setup"
    return ""


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a disk out of a file: `loop(file, "--read-only")` gives its device."""
    if reason := _why_not():
        if os.environ.get("MAGNITUDE_SYSTEM_TESTS") == "required":
            pytest.fail(f"disks for scripts/flash: {reason}", pytrace=False)
        pytest.skip(f"disks for scripts/flash: {reason}")
    devices: list[str] = []

    def attach(file: Path, *options: str) -> Path:
        done = subprocess.run(
            ["losetup", "--find", "--show", *options, str(file)], capture_output=True, text=True, check=True
        )
        devices.append(done.stdout.strip())
        return Path(devices[-1])

    yield attach
    for device in devices:
        subprocess.run(["losetup", "--detach", device], capture_output=True, check=False)
