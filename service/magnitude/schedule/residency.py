"""Which models are in the engine's memory. A pure state machine.

Pinned models (the chat model is one) are loaded first and never leave. Others are loaded when a request wants them,
and leave when they were unused for `keep_alive_s` (but for those that every start loads), or when another one needs
the room: the least recently used goes first, one with open requests never before these are done. No request is
dropped: it waits until its model is loaded, or it is refused with a reason.

Models that do not fit together would drive each other out with every request. So a model that was loaded stays for
a time that grows with what loading it took (`Model.stay_s`); whoever wants the room waits so long, requests for
either gather meanwhile, and the wanted ones take turns, longest waiting first. While a model is to make room it
starts no new requests (`may_start`), so that its turn does end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal

import msgspec

from magnitude.policy.fitting import Need, pool_refusal

State = Literal["absent", "loading", "loaded", "unloading"]

# A model with requests stays four times as long as loading it took: loading then costs at most a fifth of the time
# when two models take turns. One without requests stays as long as it took: at most half, and only while clients
# themselves alternate. Two seconds at least, since a small model loads in a fraction of one and a client that calls
# two models in turn should find the first still there. A minute at most, since somebody waits.
STAY_LOADS_BUSY = 4.0
STAY_LOADS_IDLE = 1.0
STAY_LEAST_S = 2.0
STAY_MOST_S = 60.0
# Tries of a failing load: after 1, 2, 4 ... seconds, at most five minutes apart. Requests wait through three of
# them (accidents pass within seconds), then they are refused, and so is what comes before the next try.
BACKOFF_FIRST_S = 1.0
BACKOFF_MOST_S = 300.0
TRIES_WAITED = 3
# When a model may be asked for again that has no room because memory is short: about as long as that lasts at least.
SHORT_RETRY_S = 60.0


class ModelNeed(Need, frozen=True, kw_only=True):
    """What a loaded model takes. One that `stays` leaves only for room, never for having been unused."""

    name: str
    activation_bytes: int = 0
    kv_bytes: int = 0
    pinned: bool = False
    stays: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """A request for the model waits."""

    model: str


class InUse(msgspec.Struct, frozen=True):
    """The whole truth about a model's requests: how many the engine has, and whether any waits."""

    model: str
    open_requests: int
    waiting: bool = False


class Loaded(msgspec.Struct, frozen=True):
    model: str
    load_s: float


class LoadFailed(msgspec.Struct, frozen=True):
    """`permanent`: trying again with this engine makes no sense."""

    model: str
    permanent: bool
    reason: str = ""


class Unloaded(msgspec.Struct, frozen=True):
    model: str


class EngineUp(msgspec.Struct, frozen=True):
    """An engine serves; `loaded` are in it, and loading those in `failed` (why, by name) is not tried again."""

    loaded: tuple[str, ...] = ()
    failed: dict[str, str] = {}


class EngineDown(msgspec.Struct, frozen=True):
    """The engine is gone, with all that was loaded."""


class MemoryChanged(msgspec.Struct, frozen=True):
    """All models together may take `budget_bytes`."""

    budget_bytes: int


class MemoryWanted(msgspec.Struct, frozen=True):
    """Memory is short: what is neither pinned nor in use leaves now. It is loaded again when it is asked for."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed; wanted at `next_wake_s`."""


Event = Wanted | InUse | Loaded | LoadFailed | Unloaded | EngineUp | EngineDown | MemoryChanged | MemoryWanted | Tick


class Load(msgspec.Struct, frozen=True):
    model: str


class Unload(msgspec.Struct, frozen=True):
    """It has no open requests and gets none."""

    model: str


class Refuse(msgspec.Struct, frozen=True):
    """Fail every request that waits for the model. `retry_after_s` None: asking again is of no use."""

    model: str
    reason: str
    retry_after_s: float | None = None


Effect = Load | Unload | Refuse


class _Model:
    def __init__(self, need: ModelNeed) -> None:
        self.need = need
        self.state: State = "absent"
        self.waiting = False
        self.turn = 0  # place in the queue of those that wait to be loaded
        self.open_requests = 0
        self.used_s = 0.0
        self.loaded_s = 0.0
        self.load_s = 0.0
        self.failures = 0
        self.failure = ""
        self.hopeless = False
        self.retry_at_s = 0.0

    @property
    def resident(self) -> bool:
        return self.state != "absent"

    @property
    def busy(self) -> bool:
        return self.open_requests > 0 or self.waiting

    def stays_until_s(self) -> float:
        """Before that it does not make room for another."""
        loads = STAY_LOADS_BUSY if self.busy else STAY_LOADS_IDLE
        return self.loaded_s + min(STAY_MOST_S, max(STAY_LEAST_S, loads * self.load_s))


class Residency:
    """The models of one engine. `needs` in order of importance: of the pinned ones the first are loaded first."""

    def __init__(self, needs: Iterable[ModelNeed], *, budget_bytes: int, keep_alive_s: float) -> None:
        self._models = {need.name: _Model(need) for need in needs}
        self._budget_bytes = self._planned_bytes = budget_bytes
        self.keep_alive_s = keep_alive_s
        self._up = False
        self._leaving: set[str] = set()  # to make room as soon as their requests are done
        self._turns = itertools.count()
        self._now_s = 0.0
        self._turn_at_s: float | None = None  # when those that must go first have stayed long enough

    # --- what others may ask ---

    def state(self, model: str) -> State:
        return self._models[model].state

    def may_start(self, model: str) -> bool:
        """Whether a request for the model may go to the engine now."""
        return self._models[model].state == "loaded" and model not in self._leaving

    def wanted(self, model: str) -> bool:
        """Whether a request for the model waits."""
        return self._models[model].waiting

    def used_bytes(self) -> int:
        """Taken by all that is loaded, and by what is coming or going."""
        return sum(model.need.total_bytes for model in self._models.values() if model.resident)

    def refusal(self, need: ModelNeed, budget_bytes: int | None = None) -> str | None:
        """Why `need` can never be met within `budget_bytes` (None: the present memory), or None."""
        budget = self._budget_bytes if budget_bytes is None else budget_bytes
        if (reason := pool_refusal(need.pool_bytes, budget)) is not None:
            return reason
        fixed = self._pinned_bytes(need)
        if fixed + need.total_bytes > budget:
            beside = f" beside the {_mb(fixed)} of pinned models" if fixed else ""
            return f"it needs {_mb(need.total_bytes)}, which do not fit into {_mb(budget)}{beside}"
        return None

    def next_wake_s(self) -> float | None:
        """When a `Tick` is due (monotonic); None: nothing changes by itself."""
        if not self._up:
            return None
        times = [] if self._turn_at_s is None else [self._turn_at_s]
        for model in self._models.values():
            if self._may_get_stale(model):
                times.append(model.used_s + self.keep_alive_s)
            if self._wants_load(model):
                times.append(model.retry_at_s)
        # Whatever was due at the last event has been decided then.
        return min((time for time in times if time > self._now_s), default=None)

    # --- events ---

    def apply(self, event: Event, now_s: float) -> list[Effect]:
        """An answer to a load or unload that is not under way (an engine's last words) changes nothing."""
        self._now_s = now_s
        refused: list[Effect] = []
        match event:
            case Wanted(name) if name not in self._models:
                return [Refuse(name, "there is no such model")]
            case Wanted(name):
                model = self._models[name]
                self._in_use(model, model.open_requests, True, now_s)
            case InUse(name, open_requests, waiting):
                self._in_use(self._models[name], open_requests, waiting, now_s)
            case Loaded(name, load_s) if self.state(name) == "loading":
                model = self._models[name]
                model.state, model.load_s = "loaded", load_s
                model.loaded_s = model.used_s = now_s
                model.failures = 0
            case LoadFailed(name, permanent, reason) if self.state(name) == "loading":
                self._failed(self._models[name], reason, permanent, now_s)
            case Unloaded(name) if self.state(name) == "unloading":
                self._models[name].state = "absent"
            case EngineUp(loaded, failed):
                refused = self._engine_up(loaded, failed, now_s)
            case EngineDown():
                self._engine_down(now_s)
            case MemoryChanged(budget_bytes):
                self._budget_bytes = budget_bytes
            case MemoryWanted() if self._up:
                idle = [m for m in self._models.values() if m.state == "loaded" and not m.need.pinned and not m.busy]
                return self._unload(idle) + self._decide(now_s)
            case _:
                pass
        return refused + self._decide(now_s)

    def _in_use(self, model: _Model, open_requests: int, waiting: bool, now_s: float) -> None:
        if model.open_requests or open_requests or waiting:
            model.used_s = now_s
        model.open_requests = open_requests
        if waiting and not model.waiting:
            model.turn = next(self._turns)
        model.waiting = waiting

    def _failed(self, model: _Model, reason: str, permanent: bool, now_s: float) -> None:
        model.state = "absent"
        model.failures += 1
        model.failure = reason or "it could not be loaded"
        model.hopeless = permanent
        model.retry_at_s = now_s + min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(model.failures - 1, 30))

    def _engine_up(self, loaded: tuple[str, ...], failed: dict[str, str], now_s: float) -> list[Effect]:
        """Returns refusals of the pinned models that have no room: nobody need have asked for them."""
        self._up = True
        for name, model in self._models.items():
            model.hopeless = name in failed  # otherwise another engine, perhaps with repaired files
            model.failure = failed.get(name, model.failure)
            model.state = "loaded" if name in loaded else "absent"
            if name in loaded:
                model.loaded_s = model.used_s = now_s
        refused: list[Effect] = []
        for name, model in self._models.items():
            if model.need.pinned and not model.resident and (reason := self.refusal(model.need)) is not None:
                model.waiting = False
                refused.append(Refuse(name, reason))
        return refused

    def _engine_down(self, now_s: float) -> None:
        self._up = False
        self._leaving.clear()
        self._turn_at_s = None
        for model in self._models.values():
            if model.state == "loading":
                # Perhaps it was the cause; the next engine should not die of it at once.
                self._failed(model, "the engine was lost while it loaded", permanent=False, now_s=now_s)
            model.state = "absent"
            model.open_requests = 0

    # --- decisions ---

    def _decide(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for model in self._models.values():
            if model.waiting and not model.resident:
                refuse = self._refusal_now(model, now_s)
                if refuse is not None:
                    model.waiting = False
                    effects.append(refuse)
        if not self._up:
            return effects
        effects += self._unload([model for model in self._models.values() if self._is_stale(model, now_s)])
        leaving, self._leaving, self._turn_at_s = self._leaving, set(), None
        over_bytes = self.used_bytes() - self._going_bytes() - self._budget_bytes
        if over_bytes > 0:
            # Less memory than is taken: unpinned models leave, whether they have stayed or not.
            effects += self._make_room(over_bytes, leaving, now_s, at_once=True)
        head = self._next_to_load(now_s)
        if head is not None:
            effects += self._bring_in(head, leaving, now_s)
        return effects

    def _refusal_now(self, model: _Model, now_s: float) -> Refuse | None:
        impossible = self.refusal(model.need)
        if impossible is not None:
            # What fits by the plan has no room only as long as memory is short.
            passes = self.refusal(model.need, self._planned_bytes) is None
            if passes and not self._up:
                # The engine that was lost has given its memory back, and nobody has looked since.
                return None
            return Refuse(model.need.name, impossible, SHORT_RETRY_S if passes else None)
        if model.hopeless:
            return Refuse(model.need.name, model.failure)
        if model.failures >= TRIES_WAITED and now_s < model.retry_at_s:
            return Refuse(model.need.name, model.failure, model.retry_at_s - now_s)
        return None

    def _may_get_stale(self, model: _Model) -> bool:
        stays = model.need.pinned or model.need.stays
        return model.state == "loaded" and not stays and not model.busy

    def _is_stale(self, model: _Model, now_s: float) -> bool:
        return self._may_get_stale(model) and now_s >= model.used_s + self.keep_alive_s

    def _unload(self, models: list[_Model]) -> list[Effect]:
        for model in models:
            model.state = "unloading"
            model.turn = next(self._turns)  # what waits for it had its turn, however long ago it came
        return [Unload(model.need.name) for model in models]

    def _bring_in(self, head: _Model, leaving: set[str], now_s: float) -> list[Effect]:
        short_bytes = self.used_bytes() + head.need.total_bytes - self._budget_bytes
        if short_bytes <= 0:
            head.state = "loading"
            return [Load(head.need.name)]
        short_bytes -= self._going_bytes()
        return self._make_room(short_bytes, leaving, now_s, at_once=False) if short_bytes > 0 else []

    def _make_room(self, short_bytes: int, before: set[str], now_s: float, *, at_once: bool) -> list[Effect]:
        """Unload what is to leave and has no requests; what has some starts no more. Nothing happens before all that
        is needed has stayed long enough: half the room is of no use. Those that were to leave `before` come first:
        otherwise two busy models could be asked in turn, and neither would come to an end."""
        candidates = [
            model
            for model in self._models.values()
            if model.state == "loaded" and not model.need.pinned and model.need.name not in self._leaving
        ]
        candidates.sort(
            key=lambda model: (
                model.stays_until_s() > now_s,
                model.need.name not in before,
                model.busy,
                model.used_s,
            )
        )
        chosen: list[_Model] = []
        for model in candidates:
            if short_bytes > 0:
                chosen.append(model)
                short_bytes -= model.need.total_bytes
        turn_at_s = max((model.stays_until_s() for model in chosen), default=now_s)
        if turn_at_s > now_s and not at_once:
            self._turn_at_s = turn_at_s
            return []
        self._leaving.update(model.need.name for model in chosen if model.open_requests)
        return self._unload([model for model in chosen if not model.open_requests])

    def _wants_load(self, model: _Model) -> bool:
        return model.state == "absent" and (model.need.pinned or model.waiting)

    def _next_to_load(self, now_s: float) -> _Model | None:
        """One at a time, pinned ones first, then in turn. Nobody overtakes: a smaller model that took
        the room which the first one waits for would make it wait again."""
        if any(model.state == "loading" for model in self._models.values()):
            return None
        queue = [
            model
            for model in self._models.values()
            if self._wants_load(model)
            and not model.hopeless
            and now_s >= model.retry_at_s
            and self.refusal(model.need) is None
        ]
        pinned = next((model for model in queue if model.need.pinned), None)
        return pinned or min(queue, key=lambda model: model.turn, default=None)

    def _going_bytes(self) -> int:
        """What is or will be free without any further decision."""
        return sum(
            model.need.total_bytes
            for model in self._models.values()
            if model.state == "unloading" or model.need.name in self._leaving
        )

    def _pinned_bytes(self, need: ModelNeed) -> int:
        """What pinned models other than `need` take: those that are there, and, for one that is not pinned itself,
        those that will be."""
        total = 0
        for model in self._models.values():
            if model.need.pinned and model.need.name != need.name:
                size_bytes = model.need.total_bytes
                comes = not need.pinned and not model.hopeless and total + size_bytes <= self._budget_bytes
                total += size_bytes if model.resident or comes else 0
        return total


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"
