"""What kind of thing a person wants to import. Only names, sizes and a few first bytes are looked at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from magnitude.errors import ImportFailed
from magnitude.models.genai_config import GENAI_FILE
from magnitude.models.untrusted import LFS_PREFIX

SourceKind = Literal["gguf", "huggingface", "genai", "onnx"]

# Suffixes that say how a GGUF file was quantised, not what it is: `.Q4_K_M`, `-q8_0`, `.f16`, `-00001-of-00002`.
_QUANTISATION = re.compile(r"[.\-_](i?q\d(_[0-9a-z]+)*|[bf]f?16|f32|\d{5}-of-\d{5})$", re.IGNORECASE)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is the file or folder to read, `files` those that hold graph and weights, `size_bytes` their size."""

    kind: SourceKind
    path: Path
    files: tuple[Path, ...]
    size_bytes: int


def recognise(path: Path) -> Source:
    """Raises `ImportFailed` when there is nothing usable, naming the file, the cause and the next step."""
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _file(path)
    raise ImportFailed(
        f"{path}: there is no such file or folder", hint="Check the path", param=str(path), code="source_missing"
    )


def default_name(source: Source) -> str:
    """A name made of the file's or folder's own."""
    if source.kind == "onnx" and source.path.stem in {"model", "onnx"}:
        return name_of(source.path.resolve().parent)
    return name_of(source.path)


def name_of(path: Path) -> str:
    """A name made of the file's or folder's own. Raises `ImportFailed` where there is nothing to make it of."""
    stem = path.resolve().name if path.is_dir() else path.stem
    while shorter := _QUANTISATION.sub("", stem):
        if shorter == stem:
            break
        stem = shorter
    name = _NOT_IN_NAMES.sub("-", stem.lower()).strip("-._")[:64].rstrip("-._")
    if not NAME_PATTERN.fullmatch(name):
        raise ImportFailed(f"{path}: no usable name can be made of this", hint="Give one with --name", param="name")
    return name


def check_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name) or name.endswith("."):
        raise ImportFailed(
            f"the name {name!r} cannot be used",
            hint="Use up to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit",
            param="name",
        )


def _file(path: Path) -> Source:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(64)
    if size_bytes == 0:
        raise ImportFailed(f"{path}: the file is empty", hint="Fetch it again", param=str(path))
    if head.startswith(LFS_PREFIX):
        raise ImportFailed(
            f"{path}: this is a Git LFS pointer, not the model itself",
            hint="Run `git lfs pull` in the repository it came from, or download the file directly",
            param=str(path),
        )
    if head.startswith(b"GGUF"):
        return Source(kind="gguf", path=path, files=(path,), size_bytes=size_bytes)
    if path.suffix == ".onnx":
        beside = path.parent / GENAI_FILE
        return _folder(path.parent) if beside.is_file() else _onnx(path)
    if head.lstrip()[:1] == b"<":
        raise ImportFailed(
            f"{path}: this is a web page, not a model", hint="Download the file itself", param=str(path)
        )
    raise ImportFailed(
        f"{path}: this is neither a GGUF file nor an ONNX graph",
        hint="Name a .gguf file, a .onnx file, or a model's folder",
        param=str(path),
    )


def _folder(path: Path) -> Source:
    if (path / GENAI_FILE).is_file():
        return _of_files("genai", path, _graph_files(path))
    safetensors = sorted(path.glob("*.safetensors"))
    if (path / "config.json").is_file() and safetensors:
        return _of_files("huggingface", path, safetensors)
    graphs = sorted(path.glob("*.onnx"))
    if len(graphs) == 1:
        return _onnx(graphs[0])
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return _file(ggufs[0])
    if len(graphs) + len(ggufs) > 1:
        names = ", ".join(p.name for p in [*graphs, *ggufs][:8])
        raise ImportFailed(f"{path}: there are several models here", hint=f"Name one of {names}", param=str(path))
    if (path / "adapter_config.json").is_file():
        raise ImportFailed(
            f"{path}: this is an adapter, not a model",
            hint="Name the imported model that it belongs to: --adapter-for NAME",
            param=str(path),
        )
    if sorted(path.glob("*.bin")) or sorted(path.glob("*.pt")):
        raise ImportFailed(
            f"{path}: the weights are pickled (.bin or .pt); reading them could run any code",
            hint="Fetch the model's safetensors files, or convert them where you trust the source",
            param=str(path),
        )
    raise ImportFailed(
        f"{path}: there is no model in this folder",
        hint="Expected is a .gguf or .onnx file, config.json with safetensors, or a folder with genai_config.json",
        param=str(path),
    )


def _onnx(path: Path) -> Source:
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        raise ImportFailed(f"{path}: the file is empty", hint="Fetch or export it again", param=str(path))
    return Source(kind="onnx", path=path, files=(path,), size_bytes=size_bytes)


def _graph_files(folder: Path) -> list[Path]:
    """Graphs and the data files beside them (their names are free; what they are is read in the child)."""
    other = {".json", ".jinja", ".txt", ".md", ".model", ".py"}
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix not in other and not p.name.startswith("."))


def _of_files(kind: SourceKind, path: Path, files: list[Path]) -> Source:
    return Source(kind=kind, path=path, files=tuple(files), size_bytes=sum(file.stat().st_size for file in files))
