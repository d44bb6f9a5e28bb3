"""Generations that wait for their grammar. It is built in a thread of its own: that may take a second, in which the
others go on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from magnitude.engine.loaded import LoadedModel
from magnitude.engine.protocol import Generate
from magnitude.engine.slot_header import SlotState
from magnitude.engine.thread_place import ThreadPlace

if TYPE_CHECKING:
    from magnitude.engine.grammar import Grammar


class GrammarBuilt:
    """The grammar of a waiting generation is ready, or cannot be used."""

    __slots__ = ("outcome", "request")

    def __init__(self, request: Generate, outcome: Grammar | Exception) -> None:
        self.request = request
        self.outcome = outcome


class Waiting:
    """A generation whose grammar is being built; its slot is already its own."""

    __slots__ = ("at_s", "request", "state")

    def __init__(self, request: Generate, state: SlotState, at_s: float) -> None:
        self.request = request
        self.state = state
        self.at_s = at_s


class WaitingGenerations:
    """All that wait, by request. `post` takes `GrammarBuilt` from the thread to the loop; the rest runs in the loop's
    thread, which goes from place to place, so that the building one leaves `place` first."""

    def __init__(self, post: Callable[[GrammarBuilt], None], place: ThreadPlace) -> None:
        self._post = post
        self._waiting: dict[int, Waiting] = {}
        self._builder = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="engine-grammar", initializer=place.leave
        )

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def of(self, model: str) -> list[Waiting]:
        """Those of one model."""
        return [waiting for waiting in self._waiting.values() if waiting.request.model == model]

    def add(self, request: Generate, state: SlotState, model: LoadedModel, at_s: float) -> None:
        """Have the grammar built, in its turn."""
        self._waiting[request.request_id] = Waiting(request, state, at_s)
        self._builder.submit(self._build, model, request)

    def remove(self, request_id: int) -> Waiting | None:
        """Give it up; None when there is none of that id."""
        return self._waiting.pop(request_id, None)

    def built(self, event: GrammarBuilt) -> Waiting | None:
        """Who has waited for it; None when it was given up in the meantime."""
        waiting = self._waiting.get(event.request.request_id)
        if waiting is None or waiting.request is not event.request:
            return None
        return self.remove(event.request.request_id)

    def _build(self, model: LoadedModel, request: Generate) -> None:
        """Runs in the builder's thread."""
        if request.request_id not in self._waiting:
            return  # cancelled while it stood in line: clients that come and go must not pile up work here
        try:
            outcome: Grammar | Exception = model.build_grammar(request)
        except Exception as error:
            outcome = error
        self._post(GrammarBuilt(request, outcome))
