"""What is done when memory is short, carried out on requests, conversations and models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from magnitude.errors import MemoryPressure
from magnitude.models.ledger import ENGINE_BYTES
from magnitude.policy.fitting import account_bytes
from magnitude.schedule.background import Background
from magnitude.schedule.model_switch import need_of

if TYPE_CHECKING:
    from magnitude.schedule.dispatcher import Dispatcher
    from magnitude.schedule.model_switch import ModelSwitch
    from magnitude.supervise.supervisor import EngineSupervisor

log = logging.getLogger("magnitude.memory")

# Requests that were given up may come again after so long: the time in which the next step, replacing the engine, is
# decided and done.
SHED_RETRY_S = 60.0


class MemoryRelief:
    """Implements `supervise.memory_watch.MemoryActions`. Lives on the event loop; nothing in it waits.

    `free_bytes` is the memory that the plans were made for, `draft_bytes` what a draft model takes beside them.
    `drop_caches` gives back what the service itself can do without, and is called in a thread.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        switch: ModelSwitch,
        *,
        free_bytes: int,
        draft_bytes: int,
        drop_caches: Callable[[], None],
        engine: EngineSupervisor,
        restart: Callable[[str], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._switch = switch
        self._free_bytes = free_bytes
        self._draft_bytes = draft_bytes
        self._drop_caches = drop_caches
        self._engine = engine
        self._restart = restart
        self._budget_bytes = account_bytes(free_bytes)
        # Further sessions of models: what they take, and giving them back.
        self.session_bytes: Callable[[], int] = lambda: 0
        self.drop_sessions: Callable[[], None] = lambda: None
        self._background = Background("a step against the shortage of memory failed")

    def engine_bytes(self) -> int:
        """Memory of its own that the engine was planned to take with what is in it now: all weights, packed or
        mapped, and the pools of its runs. KV is shared memory of the service."""
        needs = [
            need_of(plan)
            for plan in self._dispatcher.plans()
            if self._switch.state(plan.description.name) != "absent"
        ]
        own_bytes = sum(need.weight_bytes + need.activation_bytes for need in needs)
        return ENGINE_BYTES + self._draft_bytes + own_bytes + self.session_bytes()

    @property
    def account_bytes(self) -> int:
        """What all models and their further sessions may take together."""
        return self._budget_bytes

    def models_bytes(self) -> int:
        """What models take of that: those that are in memory, and the largest one that may be loaded beside them."""
        taken = waiting = 0
        for plan in self._dispatcher.plans():
            needed_bytes = need_of(plan).total_bytes
            if self._switch.state(plan.description.name) == "absent":
                waiting = max(waiting, needed_bytes)
            else:
                taken += needed_bytes
        return taken + waiting

    def trim(self) -> None:
        self._dispatcher.trim()
        self.drop_sessions()
        self._background.start(asyncio.to_thread(self._drop_caches))

    def shrink_kv(self, share: float) -> None:
        if share < 1:
            self._engine.spare.drop()  # a comfort, and 27 MB
        self._background.start(self._dispatcher.conversations.shrink(share))

    def unload_idle(self) -> None:
        self._switch.memory_wanted()

    def long_prompts(self, tokens: int) -> None:
        self._dispatcher.long_prompts.most_tokens = tokens

    def refuse_long(self, on: bool) -> None:
        self._dispatcher.long_prompts.refused = on

    def shed(self, reason: str) -> None:
        self._dispatcher.shed(
            MemoryPressure(
                f"memory is short, so this request was given up: {reason}",
                retry_after_s=SHED_RETRY_S,
                hint="Send it again later; 'magnitude ps' shows how the memory is",
            )
        )

    def recycle(self, reason: str) -> None:
        self._engine.recycle(reason)

    def restart(self, reason: str) -> None:
        self._restart(reason)

    def normal(self) -> None:
        self._engine.spare.prepare()

    def models_may_take(self, free_bytes: int) -> None:
        """Never more than the plans were made for: what came free since is for whoever else wants it."""
        budget_bytes = account_bytes(max(0, min(free_bytes - self._draft_bytes, self._free_bytes)))
        if budget_bytes != self._budget_bytes:
            self._budget_bytes = budget_bytes
            log.info("memory for models", extra={"fields": {"budget_mb": budget_bytes // 1_000_000}})
            self._switch.memory_changed(budget_bytes)

    async def close(self) -> None:
        """Returns when nothing is being done any more."""
        await self._background.settled()
