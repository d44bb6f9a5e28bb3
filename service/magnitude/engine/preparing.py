"""Further sessions on their way: made in a thread of its own, one at a time, while the others compute.

The loop asks and is told; everything here but the making itself runs in the loop's thread. The thread that makes them
has the priority of all others: the threads of a session's pool inherit it, and an ordinary process may lower but not
raise it again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from magnitude.engine.loaded import LoadedModel
from magnitude.engine.message import Message
from magnitude.engine.process import give_back_memory
from magnitude.engine.session_maker import SessionMaker
from magnitude.engine.session_messages import PrepareSession, SessionPrepared
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.stats import read_memory
from magnitude.engine.work import Results
from magnitude.errors import EngineError, ModelError, RequestError
from magnitude.models.description import ModelDescription

# More threads than any board has cores are a mistake, and each takes a stack.
_MOST_THREADS = 256


class Preparation:
    """A session that was asked for. `abandoned`: nobody waits for it any more."""

    __slots__ = ("abandoned", "model", "request")

    def __init__(self, request: PrepareSession, model: LoadedModel) -> None:
        self.request = request
        self.model = model
        self.abandoned = False


class SessionBuilt:
    """The thread is done with a preparation: the session, or why there is none."""

    __slots__ = ("added_bytes", "load_s", "outcome", "preparation")

    def __init__(self, preparation: Preparation, outcome: Any, load_s: float, added_bytes: int) -> None:
        self.preparation = preparation
        self.outcome = outcome
        self.load_s = load_s
        self.added_bytes = added_bytes


class Preparations:
    """All that are asked for and not made yet. `post` takes `SessionBuilt` from the thread to the loop."""

    def __init__(
        self,
        post: Callable[[SessionBuilt], None],
        maker: SessionMaker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._maker = maker
        self._clock = clock
        self._waiting: deque[Preparation] = deque()  # the first one is being made
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-session")

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, request: PrepareSession, model: LoadedModel) -> Results:
        """Make the session, in its turn. Raises `RequestError` for one that cannot be made."""
        check_spec(request.session)
        if request.session in model.sessions:
            return [(request.request_id, [_prepared(request, model, 0.0)])]
        self._waiting.append(Preparation(request, model))
        if len(self._waiting) == 1:
            self._start()
        return []

    def built(self, event: SessionBuilt) -> Results:
        """Take over what the thread has made, and let it make the next one."""
        self._waiting.popleft()
        preparation, request = event.preparation, event.preparation.request
        results: Results = []
        if preparation.abandoned:
            event.outcome = None
            give_back_memory()
        else:
            result: list[Message] | Exception
            try:
                if isinstance(event.outcome, Exception):
                    raise event.outcome
                preparation.model.add_session(request.session, event.outcome, event.added_bytes)
                result = [_prepared(request, preparation.model, event.load_s)]
            except Exception as error:
                result = error
            results.append((request.request_id, result))
        while self._waiting and self._waiting[0].request.session in self._waiting[0].model.sessions:
            same = self._waiting.popleft()
            if not same.abandoned:
                results.append((same.request.request_id, [_prepared(same.request, same.model, 0.0)]))
        if self._waiting:
            self._start()
        return results

    def abandon(self, wanted: Callable[[Preparation], bool], why: EngineError) -> Results:
        """Give up those that are `wanted`; the one under way is dropped when it is made."""
        results: Results = []
        for preparation in self._waiting:
            if not preparation.abandoned and wanted(preparation):
                preparation.abandoned = True
                results.append((preparation.request.request_id, why))
        return results

    def _start(self) -> None:
        self.thread.submit(self._build, self._waiting[0])

    def _build(self, preparation: Preparation) -> None:
        """Runs in the thread."""
        started_s = self._clock()
        outcome: Any = None
        added_bytes = 0
        try:
            if not preparation.abandoned:
                outcome, added_bytes = self._open(preparation.model.description, preparation.request.session)
        except MemoryError:
            outcome = EngineError(
                f"there is not enough memory for a further session of {preparation.request.model}",
                code="out_of_memory",
                hint="The model's own session serves; release another one, or give the service more memory",
            )
        except Exception as error:
            outcome = error
        self._post(SessionBuilt(preparation, outcome, self._clock() - started_s, added_bytes))

    def _open(self, model: ModelDescription, spec: SessionSpec) -> tuple[Any, int]:
        before_bytes = read_memory().anon_bytes
        session = self._maker.open(model, spec)
        return session, max(0, read_memory().anon_bytes - before_bytes)


def _prepared(request: PrepareSession, model: LoadedModel, load_s: float) -> SessionPrepared:
    added_bytes = model.sessions.added_bytes_of(request.session)
    return SessionPrepared(request_id=request.request_id, model=request.model, load_s=load_s, added_bytes=added_bytes)


def check_spec(spec: SessionSpec) -> None:
    """Raise for a session that no model can have: `RequestError`, or `ModelError` for a graph outside its folder."""
    if not 1 <= spec.threads <= _MOST_THREADS:
        raise RequestError(
            f"a session cannot have {spec.threads} threads", param="threads", hint=f"From 1 to {_MOST_THREADS}"
        )
    if spec.graph_file and (Path(spec.graph_file).name != spec.graph_file or spec.graph_file in (".", "..")):
        raise ModelError(
            f"{spec.graph_file} is not in the model's folder",
            code="model_file_unsafe",
            param="graph_file",
            hint="Name a file without a path",
        )
