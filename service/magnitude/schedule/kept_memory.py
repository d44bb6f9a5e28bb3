"""KV memory that outlives the service: it is handed to the service manager, which hands it to the next service.

systemd keeps descriptors for a service over a restart, whether it was asked for or a crash (FileDescriptorStoreMax=;
over a stop and a later start as well with FileDescriptorStorePreserve=yes). For each model with conversations two are
kept: the KV memory and the table of its slots (`slot_journal.py`). The next service takes them over when they fit its
plan for the model, and finds the conversations as they were, without reading anything from the disk.

Whatever does not fit (another layout, another size, something else altogether) is closed and taken out of the store,
with one line in the log. Nothing that is found there can keep the service from starting.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import time
import zlib
from array import array
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from magnitude.errors import MagnitudeError
from magnitude.schedule.kv_memory import KvMemory, MemoryRefused
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.slot_journal import SlotJournal, read_head
from magnitude.schedule.slot_terms import Revived, SlotRecord

log = logging.getLogger("magnitude.schedule")

KV_PREFIX = "magnitude-kv-"
TABLE_PREFIX = "magnitude-table-"
# Names of descriptors: printable, without colons (sd_pid_notify_with_fds(3)), at most 255 characters.
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
_NAME_CHARACTERS = 200
# A store that took nothing is asked again after so long: a manager may be busy for a moment. Where there is none it
# costs a few system calls each time.
ASK_AGAIN_S = 60.0


class Store(Protocol):
    """The service manager's store of descriptors, as `supervise.notify.Notifier` speaks to it."""

    def store(self, name: str, fds: Sequence[int]) -> bool:
        """Keep the descriptors under the name, beside what is there. False: there is nobody who would."""
        ...

    def remove(self, name: str) -> object:
        """Let go of everything of that name."""
        ...


class Inherited(Protocol):
    """A descriptor that came with the start, and its name."""

    @property
    def name(self) -> str: ...

    @property
    def fd(self) -> int: ...


class _Found(NamedTuple):
    """A slot that verifiably holds the KV of `ids` for the scope of `record`."""

    record: SlotRecord
    ids: array[int]


def stored_name(prefix: str, model: str) -> str:
    """The name of a model's descriptor in the store; different for different models."""
    fit = _UNFIT.sub("_", model)[:_NAME_CHARACTERS]
    return prefix + (fit if fit == model else f"{fit}-{zlib.crc32(model.encode()):08x}")


class KeptMemory:
    """Takes over what the service before left, and leaves it to the next one. Owned by the service's event loop.

    `inherited` are the descriptors that came with the start and are no sockets; they belong to this object from now
    on. `store` None: nothing outlives this service. `returns(stored)` is asked at a stop whether the store surely
    holds so many descriptors for a service that is started again at once.
    """

    def __init__(
        self,
        store: Store | None = None,
        inherited: Iterable[Inherited] = (),
        *,
        returns: Callable[[int], Awaitable[bool]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._returns = returns
        self._clock = clock
        self._inherited = [(one.name, one.fd) for one in inherited]
        self._journals: dict[str, SlotJournal] = {}
        self._given_up = False
        self._ask_again_s = -math.inf

    def give_up(self) -> None:
        """The next service is to begin with all memory free: leave it nothing."""
        self._given_up = True

    def inherited_bytes(self) -> int:
        """Memory that is taken by what came with the start, before `adopt` decides about it."""
        taken: dict[int, int] = {}
        for _, fd in self._inherited:
            with contextlib.suppress(OSError):
                status = os.fstat(fd)
                taken[status.st_ino] = status.st_blocks * 512
        return sum(taken.values())

    def contexts(self) -> dict[str, int]:
        """Context in tokens of the models whose memory came with the start."""
        found: dict[str, int] = {}
        for name, fd in self._inherited:
            if name.startswith(TABLE_PREFIX):
                with contextlib.suppress(MemoryRefused, OSError):
                    head = read_head(fd)
                    found[head.model] = head.layout.max_len
        return found

    def adopt(self, plans: Iterable[ModelPlan]) -> None:
        """Give each plan the memory and the conversations that it had in the service before, as far as they fit.

        To be called before an engine is started. What is of no use is closed and taken out of the store.
        """
        inherited, self._inherited = self._inherited, []
        wanted = {plan.description.name: plan for plan in plans if plan.kv is not None}
        tables = {fd: name for name, fd in inherited if name.startswith(TABLE_PREFIX)}
        memories = {fd: name for name, fd in inherited if fd not in tables}
        unused: set[str] = set()
        for fd, name in tables.items():
            try:
                kv_fd = self._adopt_one(fd, wanted, memories)
            except Exception as error:
                # Nothing that is found in the store may keep the service from starting.
                _close_unused(name, fd, error)
                unused.add(name)
            else:
                del memories[kv_fd]
        for fd, name in memories.items():
            _close_unused(name, fd, MemoryRefused("no table of slots that is in use belongs to it"))
            unused.add(name)
        self._remove(unused)
        for model, journal in self._journals.items():
            # Under its name there was something else as well, and both are gone now.
            self._put(wanted[model], journal, only=unused)

    def write(self, plan: ModelPlan, records: Sequence[SlotRecord]) -> None:
        """Note what is known of the plan's slots from now on."""
        assert plan.kv is not None, "only decoders have slots"
        journal = self._journals.get(plan.description.name)
        if journal is None:
            if all(record.state == "empty" for record in records):
                return
            journal = self._keep(plan)
            if journal is None:
                return
        for record in records:
            header = plan.kv.header(record.slot) if record.state == "running" else None
            since = header.sequence if header is not None else 0
            journal.write(msgspec.structs.replace(record, since_sequence=since))

    def forget_earlier(self, plan: ModelPlan) -> None:
        """What was deleted must not come back where the engine has not yet written over it."""
        journal = self._journals.get(plan.description.name)
        if journal is not None:
            journal.forget_earlier()

    def keeps(self, plan: ModelPlan) -> bool:
        """Whether the plan's conversations outlive this service in memory."""
        return plan.description.name in self._journals and not self._given_up

    async def continues(self) -> bool:
        """Whether what is kept is in the next service's hands in a moment, so that no copy on the disk is needed."""
        if self._returns is None or not self._journals or self._given_up:
            return False
        return await self._returns(2 * len(self._journals))

    def close(self, plans: Mapping[str, ModelPlan]) -> None:
        """Leave what holds a conversation to the next service, and take the rest out of the store."""
        for name, journal in self._journals.items():
            if self._given_up or not any(
                _holds_something(journal, slot) for slot in range(plans[name].provision.slots)
            ):
                self._remove([stored_name(KV_PREFIX, name), stored_name(TABLE_PREFIX, name)])
            journal.close()
        self._journals.clear()

    # --- inside ---

    def _adopt_one(self, fd: int, wanted: Mapping[str, ModelPlan], memories: Mapping[int, str]) -> int:
        """The KV memory's descriptor. Raises why the table in `fd` is not used, and leaves `fd` open then."""
        journal = SlotJournal.open(fd)
        kv: KvMemory | None = None
        try:
            model = journal.head.model
            plan = wanted.get(model)
            if plan is None or plan.kv is None or plan.table is None or model in self._journals:
                raise MemoryRefused(f"{model} is not served, or has its memory already")
            if (journal.head.layout, journal.head.slots) != (plan.kv.layout, plan.provision.slots):
                raise MemoryRefused(f"{model} has another context or another number of slots now")
            kv_fd = next((fd for fd in memories if _inode(fd) == journal.head.kv_inode), None)
            if kv_fd is None:
                raise MemoryRefused("the memory that it belongs to did not come along")
            kv = KvMemory(model, plan.kv.layout, kv_fd)
            found = _find(plan, kv, journal)
        except BaseException:
            if kv is not None:
                kv.release()
            journal.release()
            raise
        plan.kv.close()
        plan.kv = kv
        self._journals[model] = journal
        self._revive(plan, found)
        return kv_fd

    def _revive(self, plan: ModelPlan, found: Sequence[_Found]) -> None:
        """Put what was found into the plan's table, the conversations used last first, and give the memory of all
        other slots back."""
        assert plan.kv is not None and plan.table is not None
        now_s = self._clock()
        revived: dict[int, _Found] = {}
        for one in sorted(found, key=lambda one: one.record.used_s, reverse=True):
            if plan.table.revive(one.record, one.ids, now_s):
                revived[one.record.slot] = one
        journal = self._journals[plan.description.name]
        for slot in range(plan.kv.layout.slots):
            if slot not in revived:
                plan.kv.release_slot(slot)
                if slot < plan.provision.slots:
                    journal.write(SlotRecord(slot=slot, state="empty"))
        self.write(plan, plan.table.take_changes())
        plan.revived = Revived(
            conversations=len(revived),
            of_running=sum(one.record.state == "running" for one in revived.values()),
            tokens=sum(len(one.ids) for one in revived.values()),
        )
        fields = {
            "model": plan.description.name,
            "conversations": plan.revived.conversations,
            "were_running": plan.revived.of_running,
            "tokens": plan.revived.tokens,
            "kv_mb": round(plan.kv.resident_bytes() / 1e6, 1),
            "left_out": len(found) - len(revived),
        }
        log.info("conversations kept over the restart", extra={"fields": fields})

    def _keep(self, plan: ModelPlan) -> SlotJournal | None:
        """A table for memory that has its first conversation, both handed to the store; None: nobody keeps them."""
        assert plan.kv is not None
        if self._store is None or self._clock() < self._ask_again_s:
            return None
        name = plan.description.name
        journal = SlotJournal.create(name, plan.kv, plan.provision.slots)
        if not self._put(plan, journal):
            journal.close()
            self._ask_again_s = self._clock() + ASK_AGAIN_S  # not at every request
            return None
        self._journals[name] = journal
        return journal

    def _put(self, plan: ModelPlan, journal: SlotJournal, only: Collection[str] | None = None) -> bool:
        """Hand memory and table to the store, or those of them whose names are among `only`. False: it took none."""
        assert plan.kv is not None
        model = plan.description.name
        pair = {stored_name(KV_PREFIX, model): plan.kv.fd, stored_name(TABLE_PREFIX, model): journal.fd}
        wanted = [(name, fd) for name, fd in pair.items() if only is None or name in only]
        return self._store is not None and all(self._store.store(name, [fd]) for name, fd in wanted)

    def _remove(self, names: Iterable[str]) -> None:
        if self._store is not None:
            for name in sorted(names):
                self._store.remove(name)


def _find(plan: ModelPlan, kv: KvMemory, journal: SlotJournal) -> list[_Found]:
    """What the slots verifiably hold, for whom. Only reads."""
    assert plan.description.decoder is not None
    vocabulary = plan.description.decoder.vocab_size
    found = []
    for slot in range(plan.provision.slots):
        content = kv.content(slot)
        speaking = journal.speaking(slot, content)
        if content is None or speaking is None:
            continue
        record, ids = speaking[0], content.ids[: speaking[1]]
        if _still_served(plan, record) and max(ids) < vocabulary:
            found.append(_Found(record, ids))
    return found


def _close_unused(name: str, fd: int, error: Exception) -> None:
    reason = error.message if isinstance(error, MagnitudeError) else f"{type(error).__name__}: {error}"
    log.warning("memory of an earlier service is not used", extra={"fields": {"name": name, "reason": reason}})
    with contextlib.suppress(OSError):
        os.close(fd)


def _inode(fd: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.fstat(fd).st_ino
    return None


def _still_served(plan: ModelPlan, record: SlotRecord) -> bool:
    """Whether the model, its adapter and the layout are still those with which the slot was computed."""
    assert record.scope is not None
    now = plan.scope(record.scope.owner, record.scope.adapter)
    return msgspec.structs.replace(record.scope, plan=now.plan) == now


def _holds_something(journal: SlotJournal, slot: int) -> bool:
    return any(record.state != "empty" for record in journal.records(slot)[:1])
