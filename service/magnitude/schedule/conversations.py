"""The KV of all conversations: carries out what the slot tables decide, on memory and on disk.

It lives on the service's event loop. Memory is given back, slots are saved and saved copies are read in threads:
giving 400 MB back takes 0.2 s, in which the loop would answer nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from magnitude.config.kv import KvSettings
from magnitude.errors import MagnitudeError
from magnitude.schedule.background import Background
from magnitude.schedule.inference import GenerationTask, KeptConversation
from magnitude.schedule.kept_memory import KeptMemory
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.save_policy import HOUR_S, Candidate, SavedFile, SavePolicy, covering
from magnitude.schedule.saved_slot import SavedSlot
from magnitude.schedule.slot_files import SlotFiles
from magnitude.schedule.slot_terms import IdleSlot, Known, Placement, SlotRecord, Wanted

log = logging.getLogger("magnitude.schedule")

# How often idle conversations are looked at. `kv.save_after_s` is minutes; the look itself takes microseconds.
LOOK_EVERY_S = 5.0
# At a stop nothing new is begun after so long: on a card that writes 20 MB/s that is four conversations of 1,000
# tokens (SmolLM2-135M, float), and the unit's TimeoutStopSec= is 30 s in all.
STOP_SAVE_S = 10.0
# A shorter prompt's rate says more about the run's fixed cost than about prefill.
RATE_TOKENS = 64


class Conversations:
    """`plans` are the served models by name; `files` None: nothing is ever saved. `changed` is called when slots or
    memory came free. `kept` leaves what is in memory to the next service; None: nothing is left to it."""

    def __init__(
        self,
        plans: Mapping[str, ModelPlan],
        *,
        settings: KvSettings,
        files: SlotFiles | None,
        changed: Callable[[], None],
        kept: KeptMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plans = plans
        self._kept = kept
        self._settings = settings
        self._files = files
        self._changed = changed
        self._clock = clock
        self._policy = SavePolicy(settings, clock())
        self._saved: dict[str, SavedSlot] = {}
        self._prefill_rates: dict[str, float] = {}  # tokens per second of the last long prompt, by model
        self._restore_bytes_per_s = 0.0  # of the last restore; 0: none yet
        self._unsaved: set[tuple[str, int]] = set()  # slots whose request asked never to be written to disk
        self._background = Background("a KV slot could not be cleaned")
        self._kv_share = 1.0  # of what was held when memory got short; 1: as planned
        self._held_bytes: dict[str, int] = {}  # at that time, by model
        self._stopping = self._closing = False

    # --- requests ---

    def known(self, plan: ModelPlan, task: GenerationTask) -> Known:
        """How much of the prompt would be found now, and whose conversation it continues."""
        if plan.table is None or not task.keep_kv:
            return Known(0, "")
        return plan.table.peek(plan.scope(task.client, task.adapter), task.prompt)

    def place(self, plan: ModelPlan, request_id: int, task: GenerationTask) -> Placement | None:
        """A slot for the request, or None: none is free now."""
        assert plan.table is not None, "only decoders have slots"
        wanted = Wanted(
            request_id=request_id,
            scope=plan.scope(task.client, task.adapter),
            ids=task.prompt,
            max_new_tokens=task.max_new_tokens,
            keep=task.keep_kv,
            conversation=task.conversation,
            reuse=task.keep_kv,
        )
        placement = plan.table.place(wanted, self._clock())
        if placement is not None:
            slot = (plan.description.name, placement.slot)
            if task.save_kv:
                self._unsaved.discard(slot)
            else:
                self._unsaved.add(slot)
        self._changed_in(plan)
        return placement

    async def restore(self, plan: ModelPlan, placement: Placement) -> bool:
        """Read the placement's saved copy into its slot. False: it could not be, and the slot holds nothing."""
        assert plan.table is not None and plan.kv is not None and placement.saved is not None
        saved = self._saved.get(placement.saved)
        if saved is not None and self._files is not None:
            try:
                started_s = self._clock()
                await asyncio.to_thread(self._files.restore, plan.kv, placement.slot, saved)
            except MagnitudeError as error:
                log.warning("a saved conversation could not be read", extra={"fields": {"reason": str(error)}})
            except Exception:
                # The request waits for this: it computes its prompt then, like any other.
                log.exception("a saved conversation could not be read, on an error that nobody foresaw")
            else:
                restore_s = max(1e-6, self._clock() - started_s)
                self._restore_bytes_per_s = saved.size_bytes / restore_s
                self._tell_rates(plan)
                fields = {"model": plan.description.name, "tokens": saved.tokens, "restore_s": round(restore_s, 3)}
                log.info("conversation restored", extra={"fields": fields})
                plan.table.rewritten(placement.slot)
                self._changed_in(plan)
                return True
        self._saved.pop(placement.saved, None)
        plan.table.drop_saved(placement.saved)
        plan.table.spoiled(placement.slot)
        plan.table.rewritten(placement.slot)
        self._changed_in(plan)
        return False

    def progressed(self, plan: ModelPlan, request_id: int, valid_tokens: int) -> None:
        if plan.table is not None:
            plan.table.progressed(request_id, valid_tokens)

    def prefilled(self, plan: ModelPlan, tokens: int, prefill_s: float) -> None:
        """A prompt's `tokens` took `prefill_s` to compute: it decides when reading a saved copy pays."""
        if tokens >= RATE_TOKENS and prefill_s > 0:
            self._prefill_rates[plan.description.name] = tokens / prefill_s
            self._tell_rates(plan)

    def _tell_rates(self, plan: ModelPlan) -> None:
        rate = self._prefill_rates.get(plan.description.name)
        if plan.table is not None and rate and self._restore_bytes_per_s:
            plan.table.set_rates(prefill_tokens_per_s=rate, restore_bytes_per_s=self._restore_bytes_per_s)

    def finished(self, plan: ModelPlan, request_id: int, slot: int, task: GenerationTask, ids: list[int]) -> None:
        """The request is over. `ids` are those of its prompt and answer; empty: what the slot holds is of no use.

        What the slot holds is read from its header, which the engine wrote: it counts also when the engine is gone.
        """
        assert plan.table is not None and plan.kv is not None
        scope = plan.scope(task.client, task.adapter)
        held = plan.kv.held_tokens(slot, scope.model_hash, ids) if ids else 0
        plan.table.finished(request_id, ids[:held], self._clock())
        self._changed_in(plan)

    # --- what people ask ---

    def kept(self, client: str | None) -> list[KeptConversation]:
        found = []
        for plan in self._plans.values():
            if plan.table is None or plan.kv is None:
                continue
            for idle in plan.table.idle(self._clock(), 0.0, 1):
                if client in (None, idle.scope.owner):
                    size_bytes = len(idle.ids) * plan.kv.layout.token_bytes
                    found.append(_kept(idle.scope.model, idle.scope.owner, len(idle.ids), size_bytes, idle.idle_s))
        for saved in self._saved.values():
            if client in (None, saved.scope.owner) and self._files is not None:
                found.append(
                    KeptConversation(
                        model=saved.scope.model,
                        owner=saved.scope.owner,
                        tokens=saved.tokens,
                        size_bytes=saved.size_bytes,
                        where="disk",
                        idle_s=self._files.idle_s(saved),
                    )
                )
        return found

    async def forget(self, client: str | None, model: str | None) -> int:
        """Drop everything that is kept of `client` (None: of everybody); how many conversations there were."""
        forgotten = self.forget_in_memory(client, model)
        if self._files is not None:
            forgotten += await asyncio.to_thread(self._files.delete_all, client, model)
            for saved in list(self._saved.values()):
                if client in (None, saved.scope.owner) and model in (None, saved.scope.model):
                    self._drop_saved(saved.saved_id)
        return forgotten

    def forget_in_memory(self, client: str | None, model: str | None = None) -> int:
        """As `forget`, but for what is on the disk."""
        forgotten = 0
        for name, plan in self._plans.items():
            if plan.table is not None and model in (None, name):
                forgotten += plan.table.forget(client).slots
                self._changed_in(plan)
                if self._kept is not None:
                    self._kept.forget_earlier(plan)
        return forgotten

    @property
    def off(self) -> str:
        """Why nothing is saved; "" while saving works."""
        if self._files is None or not self._settings.save:
            return "kv.save is false"
        return self._files.off

    def saved_bytes(self, model: str) -> int:
        return sum(saved.size_bytes for saved in self._saved.values() if saved.scope.model == model)

    # --- saving ---

    def tune(self, settings: KvSettings) -> None:
        """New bounds for what is saved, from the next look on."""
        self._settings = settings
        self._policy.tune(settings)

    async def run(self) -> None:
        """Find what earlier runs saved, then look at idle conversations now and then, until cancelled."""
        try:
            await self._find_saved()
        except Exception:
            log.exception("saved conversations could not be found")
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look(at_stop=False)
            except Exception:
                log.exception("idle conversations could not be looked at")

    def stop_saving(self) -> None:
        """The service stops: what is being written is written to its end, and nothing more is begun until `close`,
        which has the time for it."""
        self._stopping = True

    async def close(self) -> None:
        """Save what the next start can use, once no engine writes any more, and give all memory back but what
        outlives this service."""
        await self._background.settled()
        self._closing = True
        try:
            # In the middle of a restart a copy on the disk would make people wait, and wear flash, for nothing.
            if self._kept is None or not await self._kept.continues():
                await self._look(at_stop=True)
        except Exception:
            log.exception("conversations could not be saved")
        for name, slot in self._unsaved:
            plan = self._plans[name]
            if plan.table is not None:
                plan.table.spoiled(slot)
                self._changed_in(plan)
        await self._background.settled()
        if self._kept is not None:
            self._kept.close(self._plans)
        for plan in self._plans.values():
            if plan.kv is not None:
                plan.kv.close()

    def _stays(self, plan: ModelPlan) -> bool:
        """Whether what is saved now stays in memory as well, where the next service finds it sooner."""
        return self._closing and self._kept is not None and self._kept.keeps(plan)

    async def leave(self, model: str) -> None:
        """The model leaves memory: save what the policy allows of its idle conversations, and give all of them up."""
        table = self._plans[model].table
        if table is None:
            return
        try:
            await self._look(at_stop=True, only=model)
        except Exception:
            log.exception("conversations of a model that leaves could not be saved")
        table.evict_all()
        self._changed_in(self._plans[model])

    async def shrink(self, share: float) -> None:
        """Memory is short: save idle conversations, as many as the policy allows, and keep all KV within `share` of
        what it held when that began, but room for one of full length. A larger share than before gives room back
        without saving; from 1 on it is as planned."""
        tighter, self._kv_share = share < self._kv_share, share
        if share >= 1:
            self._held_bytes.clear()
        for name, plan in self._plans.items():
            if share < 1 and plan.table is not None:
                held_bytes = min(plan.kv_budget_bytes, plan.table.figures().resident_bytes)
                self._held_bytes.setdefault(name, held_bytes)
        if tighter:
            try:
                await self._look(at_stop=True)
            except Exception:
                log.exception("idle conversations could not be saved when memory was short")
        if self._kv_share != share or self._stopping:
            return  # saving took so long that memory has changed meanwhile, or that all of it is given back soon
        for name, plan in self._plans.items():
            if plan.table is None or plan.kv is None:
                continue
            budget_bytes = plan.kv_budget_bytes
            if share < 1:
                one_bytes = plan.provision.context_length * plan.kv.layout.token_bytes
                budget_bytes = min(budget_bytes, max(one_bytes, int(share * self._held_bytes[name])))
            plan.table.set_budget(budget_bytes, self._clock())
            self._changed_in(plan)
        self._changed()

    async def _find_saved(self) -> None:
        if self._files is None:
            return
        found = await asyncio.to_thread(self._files.scan)
        written_bytes = self._files.written_bytes(HOUR_S)
        self._policy = SavePolicy(self._settings, self._clock(), written_bytes=written_bytes)
        if not self._settings.save:
            # Nothing would ever read them again, and who switches saving off does not expect them to stay.
            await asyncio.to_thread(self._files.delete_all, None)
            return
        for saved in found:
            self._saved[saved.saved_id] = saved
            plan = self._plans.get(saved.scope.model)
            if plan is not None and plan.table is not None and self._usable(saved):
                superseded = plan.table.add_saved(
                    saved.saved_id, saved.scope, saved.ids, saved.size_bytes, saved.conversation
                )
                await self._delete(superseded)

    def _usable(self, saved: SavedSlot) -> bool:
        plan = self._plans.get(saved.scope.model)
        return plan is not None and plan.scope(saved.scope.owner, saved.scope.adapter) == saved.scope

    async def _look(self, *, at_stop: bool, only: str | None = None) -> None:
        """Save idle conversations, as many as the policy allows, and free their memory; of the model `only` or of
        all. `at_stop`: they lose their memory now, also when they were used a moment ago."""
        if self._files is None or not self._settings.save:
            return
        candidates: list[Candidate] = []
        slots: dict[tuple[str, int], IdleSlot] = {}
        saved = list(self._saved.values())
        for name, plan in self._plans.items():
            if plan.table is None or plan.kv is None or only not in (None, name):
                continue
            idle_s = 0.0 if at_stop else self._settings.save_after_s
            for idle in plan.table.idle(self._clock(), idle_s, self._settings.saved_min_tokens):
                if (name, idle.slot) in self._unsaved:
                    continue
                if idle.saved_id is not None:  # this very sequence is on disk already
                    self._free(plan, idle.slot, idle.saved_id)
                    continue
                slots[name, idle.slot] = idle
                cover = covering(idle.scope, idle.ids, saved)
                candidates.append(
                    Candidate(
                        slot=idle.slot,
                        model=name,
                        tokens=len(idle.ids),
                        size_bytes=len(idle.ids) * plan.kv.layout.token_bytes,
                        idle_s=idle.idle_s,
                        covered_tokens=cover.tokens,
                        covered_by=cover.saved_id,
                        contained=cover.contained,
                    )
                )
        copies = [
            SavedFile(
                saved_id=copy.saved_id,
                size_bytes=copy.size_bytes,
                idle_s=self._files.idle_s(copy),
                usable=self._usable(copy),
            )
            for copy in saved
        ]
        todo = self._policy.decide(candidates, copies, self._clock(), at_stop=at_stop)
        await self._delete(todo.delete)
        for candidate in todo.free:
            if candidate.covered_by in self._saved:
                self._free(self._plans[candidate.model], candidate.slot, candidate.covered_by)
        until_s = self._clock() + STOP_SAVE_S
        for candidate in todo.save:
            if self._stopping and not self._closing:
                break
            if at_stop and self._clock() > until_s:
                log.warning(
                    "the rest is not saved", extra={"fields": {"reason": "the storage is too slow for a stop"}}
                )
                break
            await self._save(self._plans[candidate.model], slots[candidate.model, candidate.slot])

    def _free(self, plan: ModelPlan, slot: int, saved_id: str) -> None:
        """Give back the memory of a conversation that is on disk, near enough."""
        assert plan.table is not None
        if self._stays(plan):
            return
        try:
            plan.table.begin_save(slot)
        except ValueError:
            return  # somebody has taken it meanwhile
        plan.table.save_done(slot, saved_id, free=True)
        self._changed_in(plan)

    async def _save(self, plan: ModelPlan, idle: IdleSlot) -> None:
        assert plan.table is not None and plan.kv is not None and self._files is not None
        try:
            plan.table.begin_save(idle.slot)
        except ValueError:
            return  # somebody has taken it while others were saved
        saved: SavedSlot | None = None
        try:
            saved = await asyncio.to_thread(
                self._files.save, plan.kv, idle.slot, idle.scope, idle.ids, idle.conversation
            )
            self._saved[saved.saved_id] = saved
        except MagnitudeError as error:
            # When it is the storage, that was said once already; asking it again at once only wears it out.
            level = logging.DEBUG if self._files.off else logging.WARNING
            log.log(level, "a conversation was not saved", extra={"fields": {"reason": str(error)}})
            if self._files.off:
                self._policy.refused(self._clock())
        finally:
            if saved is None:
                superseded = plan.table.save_done(idle.slot, None, free=False)
            else:
                superseded = plan.table.save_done(
                    idle.slot, saved.saved_id, free=not self._stays(plan), size_bytes=saved.size_bytes
                )
            self._changed_in(plan)
        await self._delete(superseded)

    async def _delete(self, saved_ids: list[str] | tuple[str, ...]) -> None:
        assert self._files is not None
        for saved_id in saved_ids:
            self._drop_saved(saved_id)
            await asyncio.to_thread(self._files.delete, saved_id)

    def _drop_saved(self, saved_id: str) -> None:
        saved = self._saved.pop(saved_id, None)
        plan = self._plans.get(saved.scope.model) if saved is not None else None
        if plan is not None and plan.table is not None:
            plan.table.drop_saved(saved_id)

    # --- memory ---

    def _changed_in(self, plan: ModelPlan) -> None:
        """Carry out what the table of the plan has decided: note it for the next service, then clean slots."""
        assert plan.table is not None
        records = plan.table.take_changes()
        if self._kept is not None and records:
            self._kept.write(plan, [self._noted(plan, record) for record in records])
        for slot in plan.table.take_cleanups():
            self._background.start(self._clean_slot(plan, slot))

    def _noted(self, plan: ModelPlan, record: SlotRecord) -> SlotRecord:
        """What was never to be written down does not outlive the service either."""
        if (plan.description.name, record.slot) in self._unsaved:
            return SlotRecord(slot=record.slot, state="empty")
        return record

    async def _clean_slot(self, plan: ModelPlan, slot: int) -> None:
        assert plan.table is not None and plan.kv is not None
        try:
            await asyncio.to_thread(plan.kv.release_slot, slot)
        except OSError as error:
            log.warning(
                "memory of a KV slot could not be given back",
                extra={"fields": {"model": plan.description.name, "slot": slot, "reason": str(error)}},
            )
        plan.table.cleaned(slot)
        self._changed()


def _kept(model: str, owner: str, tokens: int, size_bytes: int, idle_s: float) -> KeptConversation:
    return KeptConversation(
        model=model, owner=owner, tokens=tokens, size_bytes=size_bytes, where="memory", idle_s=idle_s
    )
