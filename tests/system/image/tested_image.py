"""Images and updates for tests: what `scripts/build-guest` builds, with an agent for commands and a tiny model."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from guest_image import AGENT_UNIT
from tiny_sources import decoder_folder

from image.guest.build import build, cache_folder
from image.guest.debian import CHECKOUT, SOURCES, cached, contents, key_of, run
from image.guest.tree import MODELS, SITE
from magnitude.models.importing.parent import import_model

HERE = Path(__file__).resolve().parent
BOOT = HERE.parent / "boot"
GOLDEN = CHECKOUT / "tests/golden"
GOOD = "99.1.0"
SLOT_MIB = 640
DATA_MIB = 1024
# What is broken never becomes well: the check need not wait as long as for a slow machine.
IMPATIENT = """\
[Service]
ExecStart=
ExecStart=/usr/bin/magnitude update check --within {within}
"""
HANGS = """\
[Unit]
Description=Hangs before any service is started
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=/usr/bin/sleep infinity
"""


def _engine_ends(root: Path) -> None:
    path = root / SITE / "magnitude/engine/__main__.py"
    path.parent.mkdir(parents=True)
    path.write_text("raise SystemExit('broken on purpose')\n")


def _runtime_damaged(root: Path) -> None:
    """A library that is found and is none."""
    path = root / SITE / "onnxruntime/capi/onnxruntime_pybind11_state.py"
    path.parent.mkdir(parents=True)
    path.write_text("raise ImportError('damaged on purpose')\n")


def _weights_damaged(root: Path) -> None:
    """As large as they were, so that only what they compute tells."""
    data = "tiny/model.onnx.data"
    path = root / MODELS / data
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(reversed((root.parent / data).read_bytes())))


def _model_cut_off(root: Path) -> None:
    path = root / MODELS / "tiny/model.onnx.data"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cut off")


def _no_python(root: Path) -> None:
    path = root / "usr/bin/python3"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)


def _no_data_partition(root: Path) -> None:
    path = root / "etc/fstab"
    path.write_text("PARTUUID=nowhere /data ext4 x-systemd.device-timeout=10s 0 2\n")


def _no_kernel(root: Path) -> None:
    path = root / "boot/vmlinuz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"MZ damaged on purpose")


def _hangs_on_its_way_up(root: Path) -> None:
    _enable(root, "hangs.service", HANGS, "sysinit.target.wants")
    path = root / "etc/systemd/system/basic.target.d/60-test.conf"
    path.parent.mkdir(parents=True)
    path.write_text("[Unit]\nJobTimeoutSec=2min\n")


# What an update may bring that nobody wanted. The first one is installed by RAUC.
BROKEN: dict[str, Callable[[Path], None]] = {
    "engine-ends": _engine_ends,
    "runtime-damaged": _runtime_damaged,
    "weights-damaged": _weights_damaged,
    "model-cut-off": _model_cut_off,
    "no-python": _no_python,
    "no-data-partition": _no_data_partition,
    "no-kernel": _no_kernel,
    "hangs-on-its-way-up": _hangs_on_its_way_up,
}
BAD = next(iter(BROKEN))


class Tested(NamedTuple):
    """An image, and updates for it: one that works, and is newer in that it writes newer state; one whose service
    cannot infer. `roots` are slots that are broken in one way each."""

    architecture: str
    image: Path
    good: Path
    bad: Path
    roots: dict[str, Path]


def build_tested(architecture: str) -> Tested:
    """From the cache, or built now. Raises `BuildFailed`."""
    cache = cache_folder()
    files = [*SOURCES, "image", HERE / "tested_image.py", HERE / "ready.py", BOOT / "guest_agent.py"]
    key = key_of(architecture, *contents(files))
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"tested-{architecture}-{key}"
    if not folder.exists():
        cached(folder, lambda target: _build_all(architecture, target))
    name = f"magnitude-guest-{architecture}"
    return Tested(
        architecture,
        folder / f"{name}.img",
        folder / f"{name}-{GOOD}.raucb",
        folder / f"{name}-{BAD}.raucb",
        {kind: folder / f"{kind}.ext4" for kind in BROKEN if kind != BAD},
    )


def _build_all(architecture: str, out: Path) -> None:
    # A model of some kilobytes; imported, so that it has a golden set.
    import_model(decoder_folder(GOLDEN, out / "source"), name="tiny", models_folder=out)
    shutil.rmtree(out / "source")

    def make(**options: object) -> Path:
        overlay = write_overlay(out / "overlay", options.pop("broken", None))  # type: ignore[arg-type]
        sizes = {"slot_mib": SLOT_MIB, "data_mib": DATA_MIB}
        built = build(architecture, out, models=[out / "tiny"], overlay=overlay, **sizes, **options)  # type: ignore[arg-type]
        shutil.rmtree(overlay)
        return built.image or built.bundle or Path()

    make()
    make(bundle=True, version=GOOD, edit=_writes_newer_state)
    for kind, broken in BROKEN.items():
        bundle = make(bundle=True, version=kind_version(kind), broken=broken)
        if kind == BAD:
            bundle.rename(out / f"magnitude-guest-{architecture}-{kind}.raucb")
        else:
            _take_root_out(bundle, out / f"{kind}.ext4")
            bundle.unlink()


def kind_version(kind: str) -> str:
    return f"99.2.{list(BROKEN).index(kind)}"


def _take_root_out(bundle: Path, target: Path) -> None:
    """The slot's file system out of a bundle, whose end is a signature that nothing here reads."""
    run("unsquashfs", "-no-progress", "-quiet", "-force", "-dest", target.parent / "taken-out", bundle)
    shutil.move(target.parent / "taken-out/rootfs.ext4", target)
    shutil.rmtree(target.parent / "taken-out")
    run("fallocate", "--dig-holes", target)


def _writes_newer_state(sources: Path) -> None:
    """All state in a form that the version before does not know; but for what both have to read meanwhile."""
    changed = 0
    for path in (sources / "service").rglob("*.py"):
        if path.name == "trial_file.py":
            continue
        text, found = re.subn(
            r"(?m)^(\w*SCHEMA) = (\d+)$", lambda match: f"{match[1]} = {int(match[2]) + 1}", path.read_text()
        )
        path.write_text(text)
        changed += found
    assert changed > 5, "no schema was found"


def write_overlay(folder: Path, broken: Callable[[Path], None] | None = None) -> Path:
    """Files for `--overlay`: the agent, a look whether the service answers, and what `broken` puts there."""
    tools = folder / "opt/test"
    tools.mkdir(parents=True)
    shutil.copy(BOOT / "guest_agent.py", tools)
    shutil.copy(HERE / "ready.py", tools)
    _enable(folder, "guest-agent.service", AGENT_UNIT)
    if broken is not None:
        patience = folder / "etc/systemd/system/magnitude-boot-check.service.d/60-test.conf"
        patience.parent.mkdir(parents=True)
        patience.write_text(IMPATIENT.format(within="4m"))
        broken(folder)
    return folder


def _enable(folder: Path, name: str, text: str, wants: str = "multi-user.target.wants") -> None:
    units = folder / "etc/systemd/system"
    link = units / wants / name
    link.parent.mkdir(parents=True, exist_ok=True)
    (units / name).write_text(text)
    link.symlink_to(f"../{name}")
