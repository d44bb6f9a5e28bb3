"""How the time of a run is spread over the operators: sampled on twins of the sessions in force, never on themselves.

A twin is the same graph with the same threads and ONNX Runtime's profiler, which writes an event for each operator
of each run. It is made in the thread that makes further sessions, does a few runs while nothing else is open, and is
gone again; what it wrote is read in that thread too, and only sums leave it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec

from magnitude.engine.loaded import LoadedModel
from magnitude.engine.message import Message
from magnitude.engine.operator_profile import PhaseRuns, ProfiledRun, read_profile
from magnitude.engine.pace import Phase
from magnitude.engine.probing import TimedRun
from magnitude.engine.process import give_back_memory, is_alive
from magnitude.engine.session_maker import SessionMaker
from magnitude.engine.session_messages import OperatorsProfiled, PhaseProfile, ProfileOperators
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.work import Results
from magnitude.errors import EngineError

# Folders of profiles in the scratch folder, with the process's number.
_PREFIX = "operators-"


class Twin(SessionSpec, frozen=True, kw_only=True, dict=True):
    """The name of a twin: never that of the session which it is like."""

    profile: str


class ProfileJob:
    """One `ProfileOperators`: by one twin after the other; `advance` does one run, once a twin is there."""

    def __init__(self, request: ProfileOperators, model: LoadedModel, clock: Callable[[], float]) -> None:
        self.request_id = request.request_id
        self.request = request
        self.model = model
        self.sessions = deque(model.profiled_sessions().items())  # still to be done, the first one now
        self.twin: Twin | None = None
        self.folder: Path | None = None
        self.detached: Any = None  # a session that is nobody's but the thread's, which is to end it
        self.phases: tuple[PhaseRuns, ...] = ()
        self.given_up = False
        self.read = False  # what a twin has written is being read
        self._found: list[PhaseProfile] = []
        self._clock = clock
        self._left: list[TimedRun] = []

    @property
    def finished(self) -> bool:
        """Whether the twin has done its runs."""
        return not self._left

    def begin(self, phases: tuple[PhaseRuns, ...]) -> None:
        self.phases = phases
        self._left = [runs.run for runs in phases for _ in range(1 + runs.counted)]

    def advance(self) -> tuple[Phase, float]:
        """Do the next run. Returns its phase and its time."""
        run, phase = self._left.pop(0)
        started_s = self._clock()
        run()
        return phase, self._clock() - started_s

    def profiled(self) -> OperatorsProfiled:
        """What is known so far."""
        reason = "something else came first" if self.given_up else ""
        return OperatorsProfiled(request_id=self.request_id, phases=tuple(self._found), reason=reason)

    def take(self, runs: list[ProfiledRun]) -> None:
        """What a twin has done. Raises `EngineError` when the profile has other runs than those."""
        if len(runs) != sum(1 + phase.counted for phase in self.phases):
            raise EngineError("the profile is not complete", code="profile_unreadable")
        spec, _ = self.sessions.popleft()
        self.read = False
        for phase in self.phases:
            mine, runs = runs[1 : 1 + phase.counted], runs[1 + phase.counted :]
            kinds = sorted({kind for run in mine for kind in run.operators_s})
            self._found.append(
                PhaseProfile(
                    phase=phase.phase,
                    session=spec.session_id,
                    tokens=phase.tokens,
                    run_s=tuple(run.run_s for run in mine),
                    operators_s={kind: tuple(run.operators_s.get(kind, 0.0) for run in mine) for kind in kinds},
                )
            )


class TwinEvent:
    """The thread is done: with the twin (`session`), or with its profile (`runs`); or `error` says why not."""

    __slots__ = ("error", "job", "runs", "session")

    def __init__(
        self,
        job: ProfileJob,
        *,
        session: Any = None,
        runs: list[ProfiledRun] | None = None,
        error: Exception | None = None,
    ) -> None:
        self.job = job
        self.session = session
        self.runs = runs
        self.error = error


class Profiler:
    """One profile at a time. `post` takes events from `thread` to the loop; everything else runs in the loop's
    thread. `scratch` is where profiles are written for a moment (None: nowhere, there are none)."""

    def __init__(
        self,
        *,
        answer: Callable[[Results], None],
        post: Callable[[TwinEvent], None],
        thread: Executor,
        maker: SessionMaker,
        scratch: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer = answer
        self._post = post
        self._thread = thread
        self._maker = maker
        self._scratch = scratch
        self._clock = clock
        self._job: ProfileJob | None = None
        self._session: Any = None  # of the job that runs
        self._in_thread = 0

    @property
    def running(self) -> ProfileJob | None:
        """Whose runs are to be done now."""
        return self._job if self._session is not None else None

    @property
    def at_work(self) -> bool:
        """Whether the thread makes or ends a twin, which takes from the times of all runs."""
        return self._in_thread > 0

    def begin(self, request: ProfileOperators, model: LoadedModel, *, idle: bool) -> None:
        """Raises `RequestError` for runs that cannot be done."""
        model.check_profile()
        if self._scratch is None or not idle or self._job is not None or self.at_work:
            reason = "there is no folder for profiles" if self._scratch is None else "something else was open"
            self._say(request.request_id, OperatorsProfiled(request_id=request.request_id, reason=reason))
            return
        self._job = ProfileJob(request, model, self._clock)
        self._submit(self._open, self._job)

    def happened(self, event: TwinEvent) -> None:
        """What the thread has done."""
        self._in_thread -= 1
        job, session = event.job, event.session
        event.session = None
        if event.error is not None:
            self._over(job, event.error)
        elif event.runs is not None:
            self._have_read(job, event.runs)
        elif session is not None and not job.given_up:
            self._have(job, session)
        elif session is not None:
            job.detached = session
            self._submit(self._drop, job)

    def ran(self) -> None:
        """Another run of the job is done."""
        job = self._job
        if job is not None and job.finished:
            job.read = True
            self._detach(job)
            self._submit(self._read, job)

    def failed(self, error: Exception) -> None:
        """A run of the job has failed."""
        job = self._job
        assert job is not None, "it has just run"
        self._detach(job)
        self._submit(self._drop, job)
        self._over(job, error)

    def give_up(self, target: int | None = None) -> None:
        """Make way for something else; `target`: only the profile of that request. What has run is read."""
        job = self._job
        if job is None or job.given_up or target not in (None, job.request_id):
            return
        job.given_up = True
        if job.read:
            return
        if self._session is not None:
            self._detach(job)
            self._submit(self._drop, job)
        self._over(job, job.profiled())

    # --- inside ---

    def _have(self, job: ProfileJob, session: Any) -> None:
        assert job.twin is not None, "it has been made"
        try:
            _, phases = job.sessions[0]
            job.begin(job.model.begin_profile(job.request, phases, job.twin, session))
        except Exception as error:
            job.model.end_profile(job.twin)
            job.detached = session
            self._submit(self._drop, job)
            self._over(job, error)
            return
        self._session = session

    def _have_read(self, job: ProfileJob, runs: list[ProfiledRun]) -> None:
        try:
            job.take(runs)
        except EngineError as error:
            self._over(job, error)
            return
        if job.sessions and not job.given_up:
            self._submit(self._open, job)
        else:
            self._over(job, job.profiled())

    def _detach(self, job: ProfileJob) -> None:
        assert job.twin is not None, "only a twin runs"
        job.model.end_profile(job.twin)
        job.detached, self._session = self._session, None

    def _over(self, job: ProfileJob, outcome: Message | Exception) -> None:
        if self._job is job:
            self._job = None
            self._say(job.request_id, outcome)

    def _say(self, request_id: int, outcome: Message | Exception) -> None:
        self._answer([(request_id, outcome if isinstance(outcome, Exception) else [outcome])])

    def _submit(self, work: Callable[[ProfileJob], TwinEvent], job: ProfileJob) -> None:
        self._in_thread += 1
        self._thread.submit(self._do, work, job)

    # --- in the thread ---

    def _do(self, work: Callable[[ProfileJob], TwinEvent], job: ProfileJob) -> None:
        try:
            event = work(job)
        except MemoryError:
            what = f"there is not enough memory to profile {job.request.model}"
            event = TwinEvent(job, error=EngineError(what, code="out_of_memory"))
        except Exception as error:
            event = TwinEvent(job, error=error)
        if event.session is None and job.folder is not None:
            shutil.rmtree(job.folder, ignore_errors=True)
            give_back_memory()
        self._post(event)

    def _open(self, job: ProfileJob) -> TwinEvent:
        if job.given_up:
            return TwinEvent(job)
        assert self._scratch is not None, "looked at before"
        self._scratch.mkdir(mode=0o750, parents=True, exist_ok=True)
        _remove_left_behind(self._scratch)
        job.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=self._scratch))
        (spec, _), model = job.sessions[0], job.model.description
        twin = job.twin = Twin(**msgspec.structs.asdict(spec), profile=str(job.folder / "runs"))
        return TwinEvent(job, session=self._maker.open(model, twin, profile=twin.profile))

    def _read(self, job: ProfileJob) -> TwinEvent:
        session, job.detached = job.detached, None
        return TwinEvent(job, runs=read_profile(Path(session.end_profiling()).read_bytes()))

    def _drop(self, job: ProfileJob) -> TwinEvent:
        session, job.detached = job.detached, None
        with contextlib.suppress(Exception):  # nobody wants what it would have written
            session.end_profiling()
        return TwinEvent(job)


def _remove_left_behind(scratch: Path) -> None:
    """What engines left that died or were killed while they profiled."""
    for folder in scratch.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not is_alive(pid):
            shutil.rmtree(folder, ignore_errors=True)
