"""The part of an import that runs in the confined child: `python -m magnitude.models.import_job`.

It reads the untrusted source, writes the model's files into a staging folder and answers with the manifest. It
writes portable files only: no optimised graph and nothing else that was derived from this machine's CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from magnitude.models.manifest import Manifest
from magnitude.models.source_kind import SourceKind

Report = Callable[[float, str], None]


class ImportJob(msgspec.Struct, frozen=True, kw_only=True):
    """`memory_bytes` is what the job may use for private memory; it decides whether a float reference fits."""

    kind: SourceKind
    source: str
    staging: str
    name: str
    bits: Literal[4, 8, 16] | None
    kv: Literal["float", "int8"]
    memory_bytes: int
    created_s: int


def run_job(job: ImportJob, report: Report) -> Manifest:
    """Raises `ImportFailed` or `ModelError`; the staging folder is then the caller's to remove."""
    staging = Path(job.staging)
    if job.kind in ("gguf", "huggingface"):
        from magnitude.models.import_weights import import_weights

        return import_weights(job, staging, report)
    from magnitude.models.import_onnx import import_genai_folder, import_plain_graph

    if job.kind == "genai":
        return import_genai_folder(job, staging, report)
    return import_plain_graph(job, staging, report)


def versions() -> dict[str, str]:
    """Versions of everything that took part, for the manifest."""
    import importlib.metadata

    from magnitude import __version__

    parts = ("onnxruntime", "onnx", "gguf", "safetensors", "tokenizers", "numpy")
    return {"magnitude": __version__, **{part: importlib.metadata.version(part) for part in parts}}


def _main() -> int:
    from magnitude.models.sandbox import Reporter, serve

    def run(order: bytes, reporter: Reporter) -> Any:
        return run_job(msgspec.json.decode(order, type=ImportJob), reporter.progress)

    return serve(run)


if __name__ == "__main__":
    sys.exit(_main())
