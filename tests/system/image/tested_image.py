"""Images and updates for tests: what `scripts/build-guest` builds, with an agent for commands and a tiny model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from broken_slots import ENGINE, IMPATIENCE, Files
from guest_image import AGENT_UNIT
from tiny_sources import decoder_folder

from image.guest.build import build, cache_folder
from image.guest.debian import CHECKOUT, SOURCES, cached, contents, key_of
from magnitude.models.importing.parent import import_model

HERE = Path(__file__).resolve().parent
BOOT = HERE.parent / "boot"
GOLDEN = CHECKOUT / "tests/golden"
GOOD = "99.1.0"
SLOT_MIB = 640
DATA_MIB = 1024
BAD = "99.2.0"

# All that goes into the images: what the build reads, and what is put into them here.
MADE_OF = (
    *SOURCES,
    "image",
    "kernels",
    HERE / "tested_image.py",
    HERE / "ready.py",
    HERE / "broken_slots.py",
    BOOT / "guest_agent.py",
    BOOT / "guest_image.py",  # the agent's unit
    CHECKOUT / "tests/models/tiny_sources.py",  # the model's source ...
    *GOLDEN.glob("llama_tied*"),  # ... and what it is made from
)

# The agent answers as soon as file systems are there, long before the service.
EARLY = """\
DefaultDependencies=no
After=local-fs.target
Conflicts=shutdown.target
Before=shutdown.target
[Service]
"""


class ImageUnderTest(NamedTuple):
    """An image, and updates for it: one that works, and is newer in that it writes newer state; one whose service
    cannot infer."""

    architecture: str
    image: Path
    good: Path
    bad: Path


def build_tested(architecture: str) -> ImageUnderTest:
    """From the cache, or built now. Raises `BuildFailed`."""
    cache = cache_folder()
    key = key_of(architecture, *contents(MADE_OF))
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"tested-{architecture}-{key}"
    if not folder.exists():
        cached(folder, lambda target: _build_all(architecture, target))
    name = f"magnitude-guest-{architecture}"
    return ImageUnderTest(
        architecture,
        folder / f"{name}.img",
        folder / f"{name}-{GOOD}.raucb",
        folder / f"{name}-{BAD}.raucb",
    )


def _build_all(architecture: str, out: Path) -> None:
    # A model of some kilobytes; imported, so that it has a golden set.
    import_model(decoder_folder(GOLDEN, out / "source"), name="tiny", models_folder=out)
    shutil.rmtree(out / "source")

    def make(**options: object) -> None:
        overlay = write_overlay(out / "overlay", options.pop("files", {}))  # type: ignore[arg-type]
        sizes = {"slot_mib": SLOT_MIB, "data_mib": DATA_MIB}
        build(architecture, out, models=[out / "tiny"], overlay=overlay, **sizes, **options)  # type: ignore[arg-type]
        shutil.rmtree(overlay)

    make()
    make(bundle=True, version=GOOD, edit=_writes_newer_state)
    make(bundle=True, version=BAD, files={**ENGINE, **IMPATIENCE})


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


def write_overlay(folder: Path, files: Files | None = None) -> Path:
    """Files that are put over those of the root: the agent, a look whether the service answers, and `files`."""
    tools = folder / "opt/test"
    tools.mkdir(parents=True)
    shutil.copy(BOOT / "guest_agent.py", tools)
    shutil.copy(HERE / "ready.py", tools)
    units = folder / "etc/systemd/system"
    (units / "sysinit.target.wants").mkdir(parents=True)
    (units / "guest-agent.service").write_text(AGENT_UNIT.replace("[Service]\n", EARLY))
    (units / "sysinit.target.wants/guest-agent.service").symlink_to("../guest-agent.service")
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
