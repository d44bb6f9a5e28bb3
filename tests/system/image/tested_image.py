"""Images and updates for tests: what `scripts/build-guest` builds, with an agent for commands and a tiny model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from guest_image import AGENT_UNIT

from image.guest.build import build, cache_folder
from image.guest.debian import CHECKOUT, SOURCES, cached, contents, key_of

HERE = Path(__file__).resolve().parent
BOOT = HERE.parent / "boot"
TINY = CHECKOUT / "tests/golden/genai_tiny_llama"
GATE = CHECKOUT / "systemd/image/magnitude-boot-check.service"
GOOD, BAD = "99.1.0", "99.2.0"
SLOT_MIB = 640
# Ten times what a start takes on a machine of two cores that does nothing else; and for the one that never infers,
# long enough that an engine could have been started.
CONFIRM_WITHIN_S = {True: 900, False: 30}
STAND_IN = """\
[Unit]
Description=Confirms the slot for the tests
After=magnitude.service
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /opt/test/boot_check.py --confirm {limit_s}
[Install]
WantedBy=multi-user.target
"""
# What an update may bring that nobody wanted: an engine that ends at once.
BROKEN_ENGINE = "raise SystemExit('broken on purpose')\n"
ENGINE = "usr/lib/python3/dist-packages/magnitude/engine/__main__.py"


class Tested(NamedTuple):
    """An image, and two updates for it: one that works, one whose service cannot infer."""

    architecture: str
    image: Path
    good: Path
    bad: Path


def build_tested(architecture: str) -> Tested:
    """From the cache, or built now. Raises `BuildFailed`."""
    cache = cache_folder()
    key = key_of(architecture, *contents([*SOURCES, "image/guest", HERE / "tested_image.py", HERE / "boot_check.py",
                                          BOOT / "guest_agent.py"]))  # fmt: skip
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"tested-{architecture}-{key}"
    if not folder.exists():
        cached(folder, lambda target: _build_all(architecture, target))
    name = f"magnitude-guest-{architecture}"
    return Tested(
        architecture, folder / f"{name}.img", folder / f"{name}-{GOOD}.raucb", folder / f"{name}-{BAD}.raucb"
    )


def _build_all(architecture: str, out: Path) -> None:
    model = out / "tiny"
    shutil.copytree(TINY, model)
    for works, version in ((True, None), (True, GOOD), (False, BAD)):
        overlay = write_overlay(out / "overlay", works=works)
        build(
            architecture, out, models=[model], overlay=overlay, version=version, bundle=version is not None,
            slot_mib=SLOT_MIB,
        )  # fmt: skip
        shutil.rmtree(overlay)


def write_overlay(folder: Path, *, works: bool = True) -> Path:
    """Files for `--overlay`: the agent, a check of each boot where the image has none, and what breaks the service
    unless it `works`."""
    tools = folder / "opt/test"
    tools.mkdir(parents=True)
    shutil.copy(BOOT / "guest_agent.py", tools)
    shutil.copy(HERE / "boot_check.py", tools)
    _enable(folder, "guest-agent.service", AGENT_UNIT)
    if not GATE.exists():
        _enable(folder, "stand-in.service", STAND_IN.format(limit_s=CONFIRM_WITHIN_S[works]))
    if not works:
        engine = folder / ENGINE
        engine.parent.mkdir(parents=True)
        engine.write_text(BROKEN_ENGINE)
    return folder


def _enable(folder: Path, name: str, text: str) -> None:
    units = folder / "etc/systemd/system"
    link = units / "multi-user.target.wants" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    (units / name).write_text(text)
    link.symlink_to(f"../{name}")
