"""The shipped units, put in place below a temporary prefix."""

from __future__ import annotations

from pathlib import Path

from magnitude.units.layout import Installation, InstalledFile, plan
from magnitude.units.place import place
from magnitude.units.shipped import read_shipped, shipped_folder

SHIPPED = read_shipped(shipped_folder())


def planned(version: int, *, image: bool = False, **other: object) -> dict[str, InstalledFile]:
    """The files of an installation, by their paths below /usr/lib."""
    installation = Installation(
        **{"systemd_version": version, "prefix": "/usr", "command": "/opt/m/bin/magnitude", "image": image, **other}
    )
    return {file.path.removeprefix(f"{installation.prefix}/lib/"): file for file in plan(SHIPPED, installation)}


def placed(folder: Path, version: int, *, image: bool = False) -> Path:
    """Everything below `folder` as a prefix, with a `magnitude` that can be executed; the folder of the units."""
    command = folder / "bin/magnitude"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\nexit 0\n")
    command.chmod(0o755)
    installation = Installation(systemd_version=version, prefix=str(folder), command=str(command), image=image)
    place(plan(SHIPPED, installation), Path("/"), str(folder))
    return folder / "lib/systemd/system"
