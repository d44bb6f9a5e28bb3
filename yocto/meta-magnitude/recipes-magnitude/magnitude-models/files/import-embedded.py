"""Import the image's models with the service's own importer, at build time.

import-embedded.py FOLDER NAME=SOURCE ...
"""

from __future__ import annotations

import sys
from pathlib import Path

from magnitude.errors import MagnitudeError
from magnitude.models.importing.parent import import_model
from magnitude.models.importing.sandbox import Progress


def main(folder: Path, models: list[str]) -> None:
    folder.mkdir(parents=True)
    for model in models:
        name, _, source = model.partition("=")
        print(f"importing {name}", flush=True)
        try:
            import_model(Path(source), name=name, models_folder=folder, progress=_show)
        except MagnitudeError as error:
            sys.exit(f"{name}: {error}")
    # Readable for the service, which is nobody in particular to the image.
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _show(step: Progress) -> None:
    print(f"{step.fraction:4.0%} {step.text}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
