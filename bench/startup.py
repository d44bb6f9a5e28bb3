"""Where the time from the command to a ready service goes, and what the service holds at rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from bench.contender import PROJECT
from bench.memory import MemoryUse, read_memory
from bench.service_process import ServiceFailed, ServiceProcess, status_of
from bench.spread import Spread

# What each of the two processes imports before it does anything.
ENTRY_MODULES = ("magnitude.cli.main", "magnitude.service_loop", "magnitude.engine.loop")
TOP_IMPORTS = 10
IMPORT_RUNS = 5
# Until allocators have settled and the first heartbeats have passed.
IDLE_S = 3.0
POLL_S = 0.01
SCRIPT_TIMEOUT_S = 300.0


class ImportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One module's share of an import: by itself, and with everything it imports."""

    module: str
    self_ms: float
    cumulative_ms: float
    depth: int


class ImportCost(msgspec.Struct, frozen=True, kw_only=True):
    """Importing one entry module in a fresh interpreter, interpreter included in `wall_s`."""

    module: str
    wall_s: Spread
    top: list[ImportEntry]


class IdleMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory at rest with models loaded and no request yet."""

    service: MemoryUse
    engine: MemoryUse | None


class ReadyTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start of a command to each milestone, None for one that was not seen.

    `service_process_s`: when the service's process began, or when the script replaced itself by it.
    """

    command: str
    service_process_s: float | None
    first_answer_s: float | None
    engine_process_s: float | None
    ready_s: float


def parse_importtime(text: str) -> list[ImportEntry]:
    """The lines that `python -X importtime` writes to stderr; other lines are passed over."""
    entries = []
    for line in text.splitlines():
        prefix, _, rest = line.partition("import time:")
        parts = rest.split("|")
        if prefix or len(parts) != 3 or not parts[0].strip().isdigit():
            continue
        name = parts[2]
        entries.append(
            ImportEntry(
                module=name.strip(),
                self_ms=int(parts[0]) / 1000,
                cumulative_ms=int(parts[1]) / 1000,
                # One space before the name, and two more a level.
                depth=(len(name) - len(name.lstrip()) - 1) // 2,
            )
        )
    return entries


def top_packages(entries: Sequence[ImportEntry], count: int) -> list[ImportEntry]:
    """The dearest top-level packages: what a package and everything below it cost by themselves, summed."""
    costs: dict[str, float] = {}
    for entry in entries:
        package = entry.module.split(".")[0]
        costs[package] = costs.get(package, 0.0) + entry.self_ms
    dearest = sorted(costs.items(), key=lambda item: -item[1])[:count]
    whole = {entry.module: entry.cumulative_ms for entry in entries}
    return [
        ImportEntry(module=name, self_ms=cost, cumulative_ms=whole.get(name, cost), depth=0) for name, cost in dearest
    ]


def import_cost(module: str) -> ImportCost:
    """Import `module` in fresh interpreters. Raises `CalledProcessError` when it does not import."""
    environ = {**os.environ, "PYTHONPATH": str(PROJECT / "service")}
    command = [sys.executable, "-c", f"import {module}"]
    walls = []
    for _ in range(IMPORT_RUNS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - begin)
    timed = subprocess.run(
        [sys.executable, "-X", "importtime", *command[1:]], check=True, env=environ, capture_output=True, text=True
    )
    return ImportCost(
        module=module, wall_s=Spread.of(walls), top=top_packages(parse_importtime(timed.stderr), TOP_IMPORTS)
    )


def idle_memory(service: ServiceProcess) -> IdleMemory:
    """What service and engine hold before the first request."""
    time.sleep(IDLE_S)
    engine = service.engine_pid()
    return IdleMemory(service=read_memory(service.pid), engine=read_memory(engine) if engine is not None else None)


def time_to_ready(command: Sequence[str], port: int, cwd: Path = PROJECT) -> ReadyTime:
    """Start `command`, watch it become ready on loopback `port`, stop it. Raises `ServiceFailed`.

    The port must be free: an answer from another service would be taken for this one's.
    """
    if status_of(port, "/healthz", 1.0) is not None:
        raise ServiceFailed(f"something answers on port {port} already; stop it first")
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    output = bytearray()
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    replaced_s: float | None = None
    first_answer_s: float | None = None
    try:
        while True:
            output += process.stdout.read() or b""
            elapsed_s = time.monotonic() - began_s
            if replaced_s is None and _replaced(process.pid, command[0]):
                replaced_s = elapsed_s
            if first_answer_s is None and status_of(port, "/healthz", 1.0) == 200:
                first_answer_s = elapsed_s
            if first_answer_s is not None and status_of(port, "/readyz", 1.0) == 200:
                ready_s = time.monotonic() - began_s
                break
            if process.poll() is not None or elapsed_s > SCRIPT_TIMEOUT_S:
                raise ServiceFailed(f"{command[0]} did not bring up a service:\n{output[-2000:].decode()}")
            time.sleep(POLL_S)
        service, engine = _started(process.pid)
    finally:
        # The command's own session: the script and what it started, nothing else.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return ReadyTime(
        command=" ".join(command),
        service_process_s=replaced_s if replaced_s is not None else service,
        first_answer_s=first_answer_s,
        engine_process_s=engine,
        ready_s=ready_s,
    )


def _replaced(pid: int, script: str) -> bool:
    """Whether process `pid`, begun as `script`, now runs something else. The line is empty during an exec."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return bool(line) and os.fsencode(script) not in line.split(b"\0")


def _started(root: int) -> tuple[float | None, float | None]:
    """When the service's and the engine's process began, in seconds after process `root`.

    Differences of two start times are exact to the kernel's tick; the wall time of either is not.
    """
    first = psutil.Process(root)
    for process in first.children(recursive=True):
        if "magnitude.engine" in process.cmdline():
            parent = process.parent()
            began_s = first.create_time()
            return (
                parent.create_time() - began_s if parent is not None else None,
                process.create_time() - began_s,
            )
    return None, None
