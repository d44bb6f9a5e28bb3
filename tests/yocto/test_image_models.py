"""The image's models are served from a read-only folder, through links that give way to a user's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from magnitude.models.catalogue import scan
from scripts.fetch_models import MODELS
from yocto.checks.layer import CHECKOUT

CONF = CHECKOUT / "image/embedded-models.tmpfiles.conf"
TINY = CHECKOUT / "tests/golden/genai_tiny_llama"


def boot(root: Path) -> None:
    """What systemd-tmpfiles does with the lines of the file: `L` makes a link where nothing lies."""
    for line in CONF.read_text().splitlines():
        if line.startswith("#"):
            continue
        kind, path, *_, target = line.split()
        place = root / path.lstrip("/")
        if kind == "d":
            place.mkdir(parents=True, exist_ok=True)
        elif kind == "L" and not place.is_symlink() and not place.exists():
            place.symlink_to(root / target.lstrip("/"))


def image(root: Path) -> Path:
    """An image's tree with its models in it, and the folder that the service looks into."""
    for model in MODELS:
        shutil.copytree(TINY, root / "usr/share/magnitude/models" / model.name)
    return root / "var/lib/magnitude/models"


def test_the_links_are_those_of_the_models_that_the_image_brings() -> None:
    linked = [line.split()[1].rpartition("/")[2] for line in CONF.read_text().splitlines() if line.startswith("L ")]
    assert linked == [model.name for model in MODELS]


def test_the_service_finds_the_models_of_the_image_through_their_links(tmp_path: Path) -> None:
    models = image(tmp_path)
    boot(tmp_path)
    assert sorted(entry.name for entry in scan(models)) == sorted(model.name for model in MODELS)


def test_a_model_of_the_users_own_goes_before_the_images(tmp_path: Path) -> None:
    models = image(tmp_path)
    own = models / MODELS[0].name
    own.mkdir(parents=True)
    boot(tmp_path)
    assert not own.is_symlink()
    assert (models / MODELS[1].name).is_symlink()
