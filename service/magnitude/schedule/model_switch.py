"""Loading and unloading models while the engine serves: carries out what `residency` decides.

The dispatcher tells it of requests (`wanted`, `in_use`), asks it whether a request may go to the engine
(`may_start`), and is told when that may have changed and which requests to refuse. Lives on the service's event
loop; only giving memory back happens in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from magnitude.engine.client import EngineLink
from magnitude.errors import EngineNotReady, MagnitudeError, ModelError
from magnitude.policy import fitting as policy
from magnitude.schedule.background import Background
from magnitude.schedule.loading import ModelLoader, load_deadline_s
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.residency import (
    EngineDown,
    EngineUp,
    Event,
    InUse,
    Load,
    Loaded,
    LoadFailed,
    MemoryChanged,
    MemoryWanted,
    ModelNeed,
    Refuse,
    Residency,
    State,
    Tick,
    Unload,
    Unloaded,
    Wanted,
)

log = logging.getLogger("magnitude.schedule")

# So long after an engine has come up for those that waited, further models are loaded into it: a load holds the
# engine up (0.1 s for MiniLM), and before the first step that would be a part of the stall.
LATER_S = 1.0


def need_of(plan: ModelPlan) -> ModelNeed:
    """What the plan takes in memory once it is loaded."""
    need = policy.need_of(plan.description, plan.provision)
    return ModelNeed(
        name=plan.description.name,
        weight_bytes=need.weight_bytes,
        activation_bytes=need.activation_bytes,
        kv_bytes=need.kv_bytes,
        pinned=plan.stay == "pinned",
        stays=plan.stay == "at_start",
    )


class ModelSwitch:
    """Models of one engine, loaded as requests want them.

    `changed()` is called when a model may have become ready to start requests, or ceased to be; `refuse(model,
    error)` when all that wait for a model must fail. `leaving(model)` is awaited before a model is unloaded, and for
    one that a lost engine had and the next one has not: what its idle KV slots hold is to be saved or given up.
    `loading` is told how long a load may take at most, and None when it is over.
    """

    def __init__(
        self,
        residency: Residency,
        loader: ModelLoader,
        plans: Iterable[ModelPlan],
        *,
        changed: Callable[[], None],
        refuse: Callable[[str, MagnitudeError], None],
        leaving: Callable[[str], Awaitable[None]],
        loading: Callable[[float | None], None] = lambda deadline_s: None,
        later_s: float = LATER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._residency = residency
        self._loader = loader
        self._plans: Mapping[str, ModelPlan] = {plan.description.name: plan for plan in plans}
        self._changed = changed
        self._refuse = refuse
        self._leaving = leaving
        self._loading = loading
        self._later_s = later_s
        self._clock = clock
        self._link: EngineLink | None = None
        self._background = Background("switching models failed")
        # These outlive an engine that dies meanwhile: a thread cannot be cancelled.
        self._giving_back: set[asyncio.Future[None]] = set()
        self._emptying: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._ready: frozenset[str] = frozenset()

    # --- what the dispatcher tells and asks ---

    def may_start(self, model: str) -> bool:
        """Whether a request for the model may go to the engine now."""
        return self._residency.may_start(model)

    def state(self, model: str) -> State:
        return self._residency.state(model)

    def wanted(self, model: str) -> None:
        """A request waits for the model."""
        self._feed(Wanted(model))

    def in_use(self, model: str, open_requests: int, *, waiting: bool) -> None:
        """The model's requests in the engine, and whether others wait. To be told after every change."""
        self._feed(InUse(model, open_requests, waiting))

    def memory_changed(self, budget_bytes: int) -> None:
        """All models together may take `budget_bytes` from now on."""
        self._feed(MemoryChanged(budget_bytes))

    def memory_wanted(self) -> None:
        """Memory is short: unload what is neither pinned nor in use."""
        self._feed(MemoryWanted())

    def keep_alive(self, keep_alive_s: float) -> None:
        """Models that are not pinned leave memory after so long unused from now on."""
        self._residency.keep_alive_s = keep_alive_s
        self._feed(Tick())

    # --- what the supervisor tells ---

    def engine_up(
        self,
        link: EngineLink,
        loaded: Collection[str],
        failed: Mapping[str, str] | None = None,
        *,
        later: Collection[str] = (),
    ) -> None:
        """An engine serves, with the models `loaded` in it. Those in `failed` it could not load, and why; those in
        `later` are to follow when requests that waited for the engine have gone on."""
        self._link = link
        self._feed(EngineUp(tuple(loaded), dict(failed or {})))
        if later:
            self._later = asyncio.get_running_loop().call_later(self._later_s, self._follow, tuple(later))
        for name, plan in self._plans.items():
            if (
                plan.kv is not None
                and plan.kv.resident_bytes()
                and self.state(name) == "absent"
                and name not in later
                and not self._residency.wanted(name)
            ):
                self._background.start(self._empty(name))

    def engine_down(self) -> None:
        """The engine is gone; requests go on waiting for the next one."""
        self._link = None
        self._cancel_later()
        self._background.cancel()
        self._feed(EngineDown())

    async def settled(self) -> None:
        """Returns when no KV memory is being given back any more; until then no engine may load what was unloaded."""
        while self._giving_back:
            await asyncio.wait(self._giving_back)

    async def close(self) -> None:
        """Stop. Nothing is unloaded: the engine leaves as a whole."""
        self._cancel_later()
        if self._timer is not None:
            self._timer.cancel()
        self._link = None
        self._background.cancel()
        await self._background.settled()
        if self._emptying:
            await asyncio.wait(self._emptying)
        await self.settled()

    # --- inside ---

    def _follow(self, models: Collection[str]) -> None:
        self._later = None
        for model in models:
            if self.state(model) == "absent":
                self._feed(Wanted(model))

    def _cancel_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _feed(self, event: Event) -> None:
        for effect in self._residency.apply(event, self._clock()):
            match effect:
                case Load(model):
                    self._background.start(self._load(self._plans[model]))
                case Unload(model):
                    self._background.start(self._unload(self._plans[model]))
                case Refuse():
                    self._refuse(effect.model, _error(effect))
        self._set_timer()
        ready = frozenset(model for model in self._plans if self._residency.may_start(model))
        if ready != self._ready:
            self._ready = ready
            self._changed()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_s = self._residency.next_wake_s()
        if wake_s is not None:
            delay_s = max(0.0, wake_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._feed, Tick())

    async def _load(self, plan: ModelPlan) -> None:
        link, name, started_s = self._link, plan.description.name, self._clock()
        assert link is not None, "nothing is loaded without an engine"
        await self.settled()
        self._loading(load_deadline_s([plan]))
        failure = await self._loader.bring_up(link, plan)
        self._loading(None)
        # A lasting failure is shown with the model; one that may pass is the next try's business.
        plan.failure = failure if failure is not None and failure.permanent else None
        if failure is None:
            self._feed(Loaded(name, self._clock() - started_s))
        else:
            self._feed(LoadFailed(name, failure.permanent, str(failure)))

    async def _unload(self, plan: ModelPlan) -> None:
        link = self._link
        assert link is not None, "nothing is unloaded without an engine"
        try:
            await self._empty(plan.description.name)
        except Exception:
            # Conversations that cannot be saved are computed again; a model that never leaves blocks all others.
            log.exception("conversations of a model that leaves were not looked after")
        await self._loader.take_down(link, plan)
        if plan.kv is not None:
            giving_back = asyncio.get_running_loop().run_in_executor(None, _give_back, plan)
            self._giving_back.add(giving_back)
            giving_back.add_done_callback(self._giving_back.discard)
            await asyncio.shield(giving_back)
        self._feed(Unloaded(plan.description.name))

    async def _empty(self, model: str) -> None:
        """What is being written to the disk is written to its end, whatever becomes of the engine meanwhile."""
        leaving = asyncio.ensure_future(self._leaving(model))
        self._emptying.add(leaving)
        leaving.add_done_callback(self._emptying.discard)
        await asyncio.shield(leaving)


def _give_back(plan: ModelPlan) -> None:
    """In a thread: giving 400 MB back takes 0.2 s."""
    assert plan.kv is not None, "only decoders have slots"
    try:
        for slot in range(plan.kv.layout.slots):
            plan.kv.release_slot(slot)
    except OSError as error:
        fields = {"model": plan.description.name, "reason": str(error)}
        log.warning("KV memory of a model could not be given back", extra={"fields": fields})


def _error(refused: Refuse) -> MagnitudeError:
    if refused.retry_after_s is None:
        return ModelError(
            f"{refused.model} cannot be loaded: {refused.reason}",
            hint="See 'magnitude budget' for what it needs, and 'magnitude doctor'",
            code="model_not_loadable",
        )
    return EngineNotReady(
        f"{refused.model} could not be loaded: {refused.reason}",
        retry_after_s=refused.retry_after_s,
        hint="It is tried again by itself; the log has the details",
    )
