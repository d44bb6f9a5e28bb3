"""Starting the engine's process, reading its log lines, ending it for certain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from magnitude.engine.process import EXIT_OUT_OF_MEMORY, STACKS_SIGNAL
from magnitude.supervise import inherited, notify
from magnitude.supervise.cgroup_leaf import EngineCgroup
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.oom_witness import OomWitness

log = logging.getLogger("magnitude.engine")

# The engine finishes the graph run under way when it is asked to leave; a prefill chunk takes well under a
# second on the boards in mind, so two seconds are patience enough before SIGKILL.
TERMINATE_PATIENCE_S = 2.0
# So long an engine that is given up may write its stacks. It takes milliseconds; one that is stopped or deep in the
# kernel never does, and deadlines of seconds have passed already.
STACKS_S = 0.25
# Longest log line that is passed on: a runaway message must not fill the journal.
LOG_LINE_BYTES = 4096
# Last lines that are kept for whoever wants to know how an engine ended: a fatal signal leaves the stacks of all
# threads, some ten lines each.
LINES_KEPT = 200

OnExit = Callable[[EngineLoss], None]

# Variables that speak to the service alone: a child that inherits them would talk to systemd in its name.
_PRIVATE_VARIABLES = frozenset({*notify.VARIABLES, *inherited.VARIABLES})


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: ours, less what systemd meant for the main process only."""
    return {name: value for name, value in environ.items() if name not in _PRIVATE_VARIABLES}


# Signals that a process brings upon itself: by what it executes, or by `abort`.
_OWN_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS})


def loss_of(status: int, *, oom: bool = False) -> EngineLoss:
    """What `status`, as `Process.returncode` gives it, means. `oom`: the kernel has killed for want of memory
    at about that time."""
    if status == EXIT_OUT_OF_MEMORY:
        return EngineLoss("the engine ran out of memory and left", "oom")
    if status >= 0:
        return EngineLoss(f"the engine left with status {status}", "left")
    if -status not in signal.valid_signals():
        return EngineLoss(f"the engine was ended by signal {-status}", "killed")
    number = signal.Signals(-status)
    reason = f"the engine was ended by {number.name}"
    if number is signal.SIGKILL:
        if oom:
            return EngineLoss(f"{reason} (by the kernel, for want of memory)", "oom")
        return EngineLoss(f"{reason} (from outside)", "killed")
    if number is signal.SIGILL:
        reason += " (the onnxruntime wheel does not fit this CPU)"
    return EngineLoss(reason, "crash" if number in _OWN_FAULTS else "killed")


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
    """One engine process: from spawn to reaped. `last_lines` are the end of its log."""

    def __init__(
        self, process: asyncio.subprocess.Process, sock: socket.socket, on_exit: OnExit, group: EngineCgroup
    ):
        self._process = process
        self.sock = sock
        self.pid = process.pid
        self.last_lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._oom = OomWitness(group.oom_kills)
        loop = asyncio.get_running_loop()
        self._log_task = loop.create_task(self._forward_log())
        self._exit_task = loop.create_task(self._wait(on_exit))

    @classmethod
    async def spawn(
        cls,
        on_exit: OnExit,
        *,
        environ: Mapping[str, str] | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "magnitude.engine"),
        group: EngineCgroup | None = None,
        packed: Path | None = None,
        scratch: Path | None = None,
    ) -> EngineProcess:
        """Start `command` with one end of a new socketpair. Raises `OSError` when the system refuses. The new process
        is put into the control group `group` at once, before it takes memory worth counting. In the folder `packed`
        it may keep packed weights, in `scratch` files of a moment."""
        group = group or EngineCgroup()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--fd",
                str(theirs.fileno()),
                *(("--packed", str(packed)) if packed is not None else ()),
                *(("--scratch", str(scratch)) if scratch is not None else ()),
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
        group.add(process.pid)
        return cls(process, ours, on_exit, group)

    def heard_of(self) -> None:
        """The process has just given a sign of life."""
        self._oom.alive()

    def kill(self, *, stacks: bool = False) -> None:
        """SIGKILL; the exit is reported through `on_exit` when the process is reaped. `stacks`: before that it may
        write where its threads stand, for whoever wants to know what it was stuck in."""
        if self._process.returncode is not None:
            return
        if stacks:
            self._signal(STACKS_SIGNAL)
            asyncio.get_running_loop().call_later(STACKS_S, self.kill)
        else:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Not `Process.kill`: before it signals, it looks whether the process has ended and reaps it behind the back
        # of asyncio's child watcher, which then reports the made-up status 255 instead of how it really ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def ended(self) -> None:
        """Give the process, which has been asked to leave, some patience, then SIGKILL. Returns when it is reaped."""
        try:
            await asyncio.wait_for(asyncio.shield(self._exit_task), TERMINATE_PATIENCE_S)
        except TimeoutError:
            self.kill()
            await self._exit_task

    async def _wait(self, on_exit: OnExit) -> None:
        status = await self._process.wait()
        # The last log lines often hold the cause; a grandchild that keeps the pipe open must not delay the verdict.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._log_task, 1.0)
        on_exit(loss_of(status, oom=self._oom.kernel_has_killed()))

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
                self.last_lines.append(text)
                log.log(level, "%s", text, extra={"fields": {"pid": self.pid}})
