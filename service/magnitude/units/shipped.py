"""The files that this package brings for systemd: package data in a wheel, the folder `systemd` in a checkout."""

from __future__ import annotations

from pathlib import Path

import magnitude
from magnitude.errors import MagnitudeError


class UnitsMissing(MagnitudeError):
    """The installation has no unit files."""

    code = "units_missing"


def shipped_folder(package: Path | None = None) -> Path:
    """Where the unit files lie. `package` is the folder of the Python package. Raises `UnitsMissing`."""
    package = package or Path(magnitude.__file__).parent
    for folder in (package / "systemd", package.parent.parent / "systemd"):
        if (folder / "magnitude.service").is_file():
            return folder
    raise UnitsMissing(
        f"There are no unit files in {package / 'systemd'}",
        hint="The installation is incomplete: install the package again.",
    )


def read_shipped(folder: Path) -> dict[str, str]:
    """All files below `folder`: path relative to it → text. Raises `OSError`."""
    return {
        str(file.relative_to(folder)): file.read_text("utf-8") for file in sorted(folder.rglob("*")) if file.is_file()
    }
