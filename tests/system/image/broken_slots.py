"""What an update may bring that nobody wanted: files of a root that is broken in one way each."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from image.guest.partitions import MIB, layout, offsets
from image.guest.tree import MODELS, SITE

# What is broken never becomes well, so the check need not wait for the hour that the image gives a slow machine. But
# it has to be long enough for a slot that is whole, which is watched for a minute after it has become ready. A test
# of its own shows that such a slot passes with this very patience.
IMPATIENT = b"[Service]\nExecStart=\nExecStart=/usr/bin/magnitude update check --within 6m\n"
IMPATIENCE = {"etc/systemd/system/magnitude-boot-check.service.d/60-test.conf": IMPATIENT}
ENGINE = {f"{SITE}/magnitude/engine/__main__.py": b"raise SystemExit('broken on purpose')\n"}
RUNTIME = f"{SITE}/onnxruntime/capi/onnxruntime_pybind11_state.cpython-313-x86_64-linux-gnu.so"
WEIGHTS = f"{MODELS}/tiny/model.onnx.data"
HANGS = b"""\
[Unit]
Description=Hangs before any service is started
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=/usr/bin/sleep infinity
"""

Files = Mapping[str, bytes]
Read = Callable[[str], bytes]


def _runtime_damaged(read: Read) -> Files:
    return {RUNTIME: read(RUNTIME)[: 1 << 20]}


def _weights_damaged(read: Read) -> Files:
    """As large as they were, so that only what they compute tells."""
    return {WEIGHTS: bytes(reversed(read(WEIGHTS)))}


def _model_cut_off(read: Read) -> Files:
    return {WEIGHTS: read(WEIGHTS)[:1000]}


def _no_python(read: Read) -> Files:
    return {"usr/bin/python3.13": b"\x7fELF and nothing else"}


def _no_data_partition(read: Read) -> Files:
    return {"etc/fstab": b"PARTUUID=nowhere /data ext4 x-systemd.device-timeout=10s 0 2\n"}


def _no_kernel(read: Read) -> Files:
    return {"boot/vmlinuz": b"MZ and nothing else"}


def _hangs_on_its_way_up(read: Read) -> Files:
    units = "etc/systemd/system"
    return {
        f"{units}/hangs.service": HANGS,
        f"{units}/sysinit.target.d/60-test.conf": b"[Unit]\nWants=hangs.service\n",
        f"{units}/basic.target.d/60-test.conf": b"[Unit]\nJobTimeoutSec=3min\n",
    }


BROKEN: Mapping[str, Callable[[Read], Files]] = {
    "runtime-damaged": _runtime_damaged,
    "weights-damaged": _weights_damaged,
    "model-cut-off": _model_cut_off,
    "no-python": _no_python,
    "no-data-partition": _no_data_partition,
    "no-kernel": _no_kernel,
    "hangs-on-its-way-up": _hangs_on_its_way_up,
}


def hurry_slot(disk: Path, slot_mib: int, data_mib: int, partition: str = "root-b") -> int:
    """Give the check of the system in a slot of the raw image `disk` less time, where it lies, and break nothing; the
    byte at which its file system begins."""
    at = offsets(layout(slot_mib * MIB, data_mib * MIB))[partition]
    put_files(disk, at, IMPATIENCE)
    return at


def break_slot(disk: Path, kind: str, slot_mib: int, data_mib: int, partition: str = "root-b") -> None:
    """Break the system in that slot as well. Whatever is not as it was meant to be afterwards fails here: a slot in
    which nothing was broken proves nothing."""
    at = hurry_slot(disk, slot_mib, data_mib, partition)
    put_files(disk, at, BROKEN[kind](lambda path: read_file(disk, at, path)))


def put_files(disk: Path, at: int, files: Files) -> None:
    """Write `files`, which may be there already, into the file system at the byte `at` of `disk`."""
    before = {path: read_file(disk, at, path, missing=b"") for path in files}
    assert not [path for path, content in files.items() if content == before[path]], "that would change nothing"
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for number, (path, content) in enumerate(files.items()):
            file = Path(folder, str(number))
            file.write_bytes(content)
            file.chmod(0o755)
            parents = list(Path("/", path).parents)[-2::-1]
            commands += [f"mkdir {parent}" for parent in parents]
            commands += [f"cd {parents[-1]}", f"rm {Path(path).name}", f"write {file} {Path(path).name}", "cd /"]
        _debugfs(disk, at, commands, write=True)
    after = {path: read_file(disk, at, path) for path in files}
    assert after == dict(files), "the file system does not hold what was written"


def read_file(disk: Path, at: int, path: str, *, missing: bytes | None = None) -> bytes:
    """A file of the file system at the byte `at` of `disk`; `missing` where it is not there, and may be."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "read")
        _debugfs(disk, at, [f"dump /{path} {target}"])
        if missing is not None and not target.exists():
            return missing
        return target.read_bytes()


def _debugfs(disk: Path, at: int, commands: list[str], *, write: bool = False) -> None:
    done = subprocess.run(
        ["debugfs", *(["-w"] if write else []), "-f", "/dev/stdin", f"{disk}?offset={at}"],
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        check=True,
    )
    # What exists already, and what does not, is said and no matter; what is in the way is.
    said = [line for line in done.stderr.splitlines() if "No space" in line or "while opening" in line.lower()]
    assert not said, said
