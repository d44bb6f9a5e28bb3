"""What a build with kas has, out of the files below `yocto/kas`: they are the one place that says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parents[1] / "kas"
BITBAKE = "bitbake"
# This repository, whose layer is not among the clones.
OWN = "magnitude"


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A clone. `layers`: folder → whether it is one of the build's layers; empty where the clone is the layer."""

    url: str = ""
    branch: str = ""
    layers: dict[str, str | None] = {}


class KasFile(msgspec.Struct, frozen=True, kw_only=True):
    """Of a file of kas what a build folder without kas needs, too."""

    repos: dict[str, Repository] = {}
    local_conf_header: dict[str, str] = {}
    env: dict[str, str | None] = {}
    distro: str = ""
    machine: str = ""
    target: str | list[str] = ""


class KasBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build for one machine. `layers`: folders below the one that holds all clones, in the order of
    bblayers.conf, without our own layer. `settings`: lines of local.conf. `files`: variables that name a file of the
    builder's own."""

    distro: str
    targets: tuple[str, ...]
    layers: tuple[str, ...]
    settings: str
    files: tuple[str, ...]


def machines(folder: Path = FOLDER) -> tuple[str, ...]:
    """Machines that there is a file for."""
    return tuple(sorted(path.stem for path in (folder / "machine").glob("*.yml")))


def read_kas(path: Path) -> KasFile:
    """Raises `OSError`, `msgspec.ValidationError`."""
    return msgspec.yaml.decode(path.read_bytes(), type=KasFile)


def read_build(machine: str, *, rauc: bool, folder: Path = FOLDER) -> KasBuild:
    """What `kas build` makes of the files for `machine`, with those for updates or without. Raises `OSError`,
    `msgspec.ValidationError`."""
    names = ["base.yml", f"machine/{machine}.yml", *(["feature/rauc.yml"] if rauc else [])]
    files = [read_kas(folder / name) for name in names]
    targets = [file.target for file in files if file.target][-1]
    return KasBuild(
        distro=files[0].distro,
        targets=(targets,) if isinstance(targets, str) else tuple(targets),
        layers=tuple(_layers({name: repository for file in files for name, repository in file.repos.items()})),
        settings="".join(text for file in files for text in file.local_conf_header.values()),
        files=tuple(name for file in files for name in file.env),
    )


def _layers(repositories: Mapping[str, Repository]) -> Iterable[str]:
    for name, repository in repositories.items():
        if name == OWN:
            continue
        if not repository.layers:
            yield name
        for layer, said in repository.layers.items():
            if said is None:
                yield f"{name}/{layer}"
