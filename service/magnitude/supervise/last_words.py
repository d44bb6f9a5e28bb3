"""What a process says when it is ended for having hung: where each of its threads stood.

systemd's watchdog ends a service with SIGABRT. The handler is C code of the interpreter, so that the stacks come out
whatever the process is stuck in; what a blocked event loop was executing is among them. Where the *waiting* tasks of
a loop stand, no signal handler can tell; that is for the loop itself to say, while it still turns.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import sys
from typing import TextIO

# Tasks whose stacks are written: a service under load has hundreds, most of them alike.
MAX_TASKS = 40
# Innermost frames of each: enough to see what is waited for and by whom.
MAX_FRAMES = 6


def speak_when_killed(stream: TextIO | None = None) -> None:
    """From now on a fatal signal (SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL) writes the stacks of all threads to
    `stream` (stderr: the journal), which must have a descriptor, and then ends the process as before."""
    faulthandler.enable(sys.stderr if stream is None else stream, all_threads=True)


def task_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Where the tasks of a loop wait, to be called on that loop."""
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    out = io.StringIO()
    for task in tasks[:MAX_TASKS]:
        task.print_stack(limit=MAX_FRAMES, file=out)
    if len(tasks) > MAX_TASKS:
        out.write(f"and {len(tasks) - MAX_TASKS} more tasks\n")
    return out.getvalue().rstrip()
