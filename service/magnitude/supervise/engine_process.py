"""Starting the engine's process, reading its log lines, ending it for certain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping

log = logging.getLogger("magnitude.engine")

# The engine finishes the graph run under way when it is asked to leave; a prefill chunk takes well under a
# second on the boards in mind, so two seconds are patience enough before SIGKILL.
TERMINATE_PATIENCE_S = 2.0
# Longest log line that is passed on: a runaway message must not fill the journal.
LOG_LINE_BYTES = 4096

# Variables that speak to the service alone: a child that inherits them would talk to systemd in its name.
_PRIVATE_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: ours, less what systemd meant for the main process only."""
    return {name: value for name, value in environ.items() if name not in _PRIVATE_VARIABLES}


def describe_exit(status: int) -> str:
    """`status` as `Process.returncode` gives it, in words."""
    if status >= 0:
        return f"the engine left with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hints = {
        "SIGKILL": " (killed from outside, or by the kernel for want of memory)",
        "SIGILL": " (the onnxruntime wheel does not fit this CPU)",
    }
    return f"the engine was ended by {name}{hints.get(name, '')}"


def engine_line(line: str) -> tuple[int, str]:
    """Level and text of a line of the engine's log; lines without a level (a traceback, a library) are warnings.

    What the engine says at its own info level is told by the service's events already, so it counts as debug here.
    """
    level, _, text = line.partition(" ")
    number = logging.getLevelNamesMapping().get(level)
    if number is None:
        return logging.WARNING, line
    return (logging.DEBUG if number == logging.INFO else number), text


class EngineProcess:
    """One engine process: from spawn to reaped."""

    def __init__(self, process: asyncio.subprocess.Process, sock: socket.socket, on_exit: Callable[[str], None]):
        self._process = process
        self.sock = sock
        self.pid = process.pid
        loop = asyncio.get_running_loop()
        self._log_task = loop.create_task(self._forward_log())
        self._exit_task = loop.create_task(self._wait(on_exit))

    @classmethod
    async def spawn(
        cls,
        on_exit: Callable[[str], None],
        *,
        environ: Mapping[str, str] | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "magnitude.engine"),
        place: Callable[[int], object] | None = None,
    ) -> EngineProcess:
        """Start `command` with one end of a new socketpair. Raises `OSError` when the system refuses. `place` gets
        the new process's id at once, before it takes memory worth counting."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--fd",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=child_environment(os.environ if environ is None else environ),
                limit=LOG_LINE_BYTES,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        if place is not None:
            place(process.pid)
        return cls(process, ours, on_exit)

    def kill(self) -> None:
        """SIGKILL; the exit is reported through `on_exit` when the process is reaped."""
        if self._process.returncode is not None:
            return
        # Not `Process.kill`: before it signals, it looks whether the process has ended and reaps it behind the back
        # of asyncio's child watcher, which then reports the made-up status 255 instead of how it really ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Give the process, which has been asked to leave, some patience, then SIGKILL. Returns when it is reaped."""
        try:
            await asyncio.wait_for(asyncio.shield(self._exit_task), TERMINATE_PATIENCE_S)
        except TimeoutError:
            self.kill()
            await self._exit_task

    async def _wait(self, on_exit: Callable[[str], None]) -> None:
        status = await self._process.wait()
        # The last log lines often hold the cause; a grandchild that keeps the pipe open must not delay the verdict.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._log_task, 1.0)
        on_exit(describe_exit(status))

    async def _forward_log(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than the limit: asyncio has dropped it
                continue
            if not line:
                return
            level, text = engine_line(line.decode("utf-8", "replace").rstrip())
            if text:
                log.log(level, "%s", text, extra={"fields": {"pid": self.pid}})
