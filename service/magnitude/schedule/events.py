"""What happens to requests, and what is to be done about it: the language between dispatcher and admission."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from magnitude.schedule.inference import Deadline, Priority

Lane = Literal["generation", "run"]


class Places(Protocol):
    """Who knows which models are loaded, and which KV slot a generation gets. Pure, like admission itself."""

    def ready(self, model: str, *, begun: bool) -> bool:
        """Whether a request may go to the model now; `begun`: one that was paused, or lost its engine."""
        ...

    def place(self, request_id: int, now_s: float) -> object | None:
        """Where the generation runs, taken from now on; None: nothing fits now. A generation that was paused is
        given the place it still holds."""
        ...


# --- what happens ---


class Submit(msgspec.Struct, frozen=True):
    """A request arrives. `tokens` are the positions of its prompt that must be computed, as far as known;
    `max_new_tokens` 0: unknown, as for encoder runs. `conversation` names what it belongs to ("": nothing known),
    `continuing` says that it goes on a conversation that was here before. `expect` further requests of the client
    will follow once this one has been answered."""

    request_id: int
    lane: Lane
    model: str
    client: str = ""
    priority: Priority = "normal"
    deadline: Deadline | None = None
    task: str = "chat"
    conversation: str = ""
    continuing: bool = False
    expect: int = 0
    tokens: int = 0
    max_new_tokens: int = 0


class Withdraw(msgspec.Struct, frozen=True):
    """The client is gone. Waiting requests leave at once, running ones when the engine confirms."""

    request_id: int


class Ended(msgspec.Struct, frozen=True):
    """The engine is done with the request (finished, failed or cancelled).

    `compute_s`: how long it held its compute slot; 0: from its `Start` to now, without pauses. The other figures are
    those of `engine.protocol.Finished`, over all its runs, with `prefill_tokens` the positions that were computed;
    0 where unknown. `failed`: it has no answer, because it failed or its client went away.
    """

    request_id: int
    compute_s: float = 0.0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    new_tokens: int = 0
    decode_s: float = 0.0
    failed: bool = False


class Paused(msgspec.Struct, frozen=True):
    """The engine let go of a generation that it was asked to pause. It keeps its place and waits to go on."""

    request_id: int


class EngineUp(msgspec.Struct, frozen=True):
    """`models`: compute slots by decoder model, the default one first. Other models need none."""

    models: dict[str, int]


class EngineDown(msgspec.Struct, frozen=True):
    """Nothing runs any more. What was running waits to go on with the next engine, as what waits does; those in
    `suspects` may have been the reason and go first, each alone."""

    suspects: frozenset[int] = frozenset()


class Proved(msgspec.Struct, frozen=True):
    """A suspect ran and the engine lives: it is one like the others again."""

    request_id: int


class SetComputeSlots(msgspec.Struct, frozen=True):
    """From now on so many generations of the model run together. Those beyond it are not interrupted."""

    model: str
    slots: int


class LimitChanged(msgspec.Struct, frozen=True):
    """From now on at most `limit` generations run at once, of all models together; None: as many as the models'
    compute slots allow. Those beyond it are not interrupted, and what waits stays. Below 1 counts as 1."""

    limit: int | None


class Reserve(msgspec.Struct, frozen=True):
    """A client announces `requests` generations within `hold_s`; `Admission.hold` says what is held then. Its newest
    announcement for a model replaces the one before; 0 requests take it back. `model` "": the default one.
    `priority`: the class that they will have."""

    client: str
    requests: int
    hold_s: float
    model: str = ""
    priority: Priority = "normal"


class PlacesChanged(msgspec.Struct, frozen=True):
    """KV slots or memory came free, other than by a request that ended; or other models are loaded."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed; due at the latest when `Admission.next_wake_s` says."""


Event = (
    Submit
    | Withdraw
    | Ended
    | Paused
    | EngineUp
    | EngineDown
    | Proved
    | SetComputeSlots
    | LimitChanged
    | Reserve
    | PlacesChanged
    | Tick
)


# --- what is to be done ---


class Start(msgspec.Struct, frozen=True):
    """Give the request to the engine. `placement` is what `Places.place` said (None for runs); `waited_s` all its
    waiting so far. `max_new_tokens`: the answer is cut to so many for its deadline's sake; None: as asked.
    `resumed`: it ran before and goes on where it was paused or lost its engine."""

    request_id: int
    placement: object | None
    waited_s: float
    max_new_tokens: int | None = None
    resumed: bool = False


class Reject(msgspec.Struct, frozen=True):
    """No room in the queue, where `waiting` requests wait; it would have been number `position` in line (1: next).
    Not always the newcomer: a background request gives its place up to one of a higher class."""

    request_id: int
    waiting: int
    position: int
    retry_after_s: float


class Interrupt(msgspec.Struct, frozen=True):
    """Ask the engine to stop a running request."""

    request_id: int


class Pause(msgspec.Struct, frozen=True):
    """Ask the engine to let go of a running generation, which will go on later; answer with `Paused`, or with
    `Ended` when it came to its end first."""

    request_id: int


class Dropped(msgspec.Struct, frozen=True):
    """A request that was withdrawn, or ended by its deadline, left without the engine's doing. One that has begun
    gives its place back now."""

    request_id: int


class Lost(msgspec.Struct, frozen=True):
    """The engine that ran the request is gone. It keeps its place and goes on with the next one."""

    request_id: int


class Expire(msgspec.Struct, frozen=True):
    """The deadline has passed. `hard`: refuse with what was done; an `Interrupt` of a running one comes along.
    Soft: end the answer with what there is. Not `running`: it is out of the queue, and one that was paused gives
    its place back now. A running one is over at its `Ended`, as always."""

    request_id: int
    running: bool
    hard: bool


Effect = Start | Reject | Interrupt | Pause | Dropped | Lost | Expire
