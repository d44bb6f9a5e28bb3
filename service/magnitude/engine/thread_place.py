"""On which CPUs the thread runs that computes.

ONNX Runtime's pool threads keep the CPUs of the thread that makes the session; the thread that calls `run` takes
part in each operator and has to be where they are. It goes there before a run, and only where that changes anything.
"""

from __future__ import annotations

import logging
import os

from magnitude.board.cpu import cpu_list, thread_affinity
from magnitude.board.roots import HostRoots
from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import RequestError

log = logging.getLogger(__name__)


class ThreadPlace:
    """Moves the calling thread, in a process that has a thread which is never moved: where that one may run, which
    others can change from outside, the calling one goes back to."""

    def __init__(self) -> None:
        self._at: tuple[int, ...] = ()

    @property
    def anywhere(self) -> frozenset[int]:
        """The CPUs that all threads together may run on, as it is now."""
        return thread_affinity(HostRoots()) or frozenset(os.sched_getaffinity(0))

    def go(self, spec: SessionSpec | None) -> None:
        """Where a run by that session belongs. For one thread only, which calls it before each of its runs."""
        cpus = spec.cpus if spec is not None else ()
        if cpus == self._at:
            return
        self._at = cpus
        try:
            os.sched_setaffinity(0, cpus or self.anywhere)
        except OSError as error:
            # They were there when the session was made: taken offline since, or from the service's control group.
            log.warning("CPUs %s cannot be used any more (%s): running anywhere", cpu_list(cpus), error.strerror)
            self.leave()

    def leave(self) -> None:
        """Let the calling thread run anywhere; also the first act of a thread that the moving one starts."""
        os.sched_setaffinity(0, self.anywhere)

    def settle(self, cpus: tuple[int, ...]) -> None:
        """Confine the calling thread to these CPUs, and the threads that it starts; () lets it run anywhere.

        Raises `RequestError` unless it can run on all of them.
        """
        self.leave()
        if not cpus:
            return
        try:
            os.sched_setaffinity(0, cpus)
            got = os.sched_getaffinity(0)
        except (OSError, ValueError, OverflowError):
            got = set()
        if got != set(cpus):
            self.leave()
            missing = tuple(sorted(set(cpus) - got - self.anywhere)) or cpus
            raise RequestError(
                f"CPUs {cpu_list(missing)} are offline, or the service may not use them",
                code="cpus_not_usable",
                param="cpus",
                hint=f"It may run on {cpu_list(tuple(self.anywhere))}",
            )
