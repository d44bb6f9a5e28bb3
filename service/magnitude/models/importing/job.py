"""The part of an import that runs in the confined child: `python -m magnitude.models.importing.job`.

It reads the untrusted source, writes the model's files into a staging folder and answers with the manifest. It
writes portable files only: no optimised graph and nothing else that was derived from this machine's CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from magnitude.models.importing.order import ImportJob, Report
from magnitude.models.manifest import Manifest


def run_job(job: ImportJob, report: Report) -> Manifest:
    """Raises `ImportFailed` or `ModelError`; the staging folder is then the caller's to remove."""
    staging = Path(job.staging)
    if job.kind in ("gguf", "huggingface"):
        from magnitude.models.importing.weights import import_weights

        return import_weights(job, staging, report)
    from magnitude.models.importing.onnx_source import import_genai_folder, import_plain_graph

    if job.kind == "genai":
        return import_genai_folder(job, staging, report)
    return import_plain_graph(job, staging, report)


def _main() -> int:
    from magnitude.models.importing.sandbox import Reporter, serve

    def run(order: bytes, reporter: Reporter) -> Any:
        return run_job(msgspec.json.decode(order, type=ImportJob), reporter.progress)

    return serve(run)


if __name__ == "__main__":
    sys.exit(_main())
