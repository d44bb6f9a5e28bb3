"""Where weights come from: a GGUF file or a Hugging Face folder, behind one small interface."""

from __future__ import annotations

from pathlib import Path

from magnitude.errors import ImportFailed
from magnitude.models.sources.source import ArchConfig, BlockMatrix, Rope, WeightSource

__all__ = ["ArchConfig", "BlockMatrix", "Rope", "WeightSource", "open_source"]


def open_source(path: Path) -> WeightSource:
    """Open a `.gguf` file, or a folder with `config.json` and safetensors.

    Only headers are read; weights stay on disk until they are asked for. Raises `ImportFailed`, whose hint says
    what to do, for files that are missing, cut off, damaged or of an unsupported kind.
    """
    from magnitude.models.sources.gguf import GgufSource
    from magnitude.models.sources.huggingface import HuggingFaceSource

    if not path.exists():
        raise ImportFailed(f"{path} does not exist", hint="Name a .gguf file or a model folder")
    if path.is_dir():
        if not (path / "config.json").exists() and (found := sorted(path.glob("*.gguf"))):
            names = ", ".join(p.name for p in found[:5])
            raise ImportFailed(f"{path.name} is a folder of GGUF files", hint=f"Name one of them: {names}")
        return HuggingFaceSource(path)
    return GgufSource(path)
