"""Which idle conversations are written to disk, and which saved ones make room. Pure: no clock, no files.

Flash wears out and a card is slow, so a conversation is written only when computing it again would cost more than a
little, when no saved copy has most of it already, and within a budget of bytes an hour and in total.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from magnitude.config.kv import KvSettings
from magnitude.schedule.prefix_tree import as_ids, common_tokens
from magnitude.schedule.saved_slot import SavedSlot
from magnitude.schedule.scope import Scope

HOUR_S = 3600.0
# A copy that has so much of a conversation is not written anew. Each rewrite is then at least a third larger than the
# copy before it, so that a conversation that grows turn by turn is written at most four times its final size in all
# (geometric series), and at most a quarter of it has to be computed again.
MOSTLY_COVERED = 0.75
# Storage that refused is asked again so much later: a full card is seldom emptied sooner, and a worn one is not
# healed by trying.
RETRY_S = 600.0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in memory that could be saved. Those of requests that opted out are never candidates.

    `covered_tokens` of its beginning are in the saved copy `covered_by` (`covering`). `contained`: that copy holds
    nothing else, so that it is of no use once this conversation is saved.
    """

    slot: int
    tokens: int
    size_bytes: int
    idle_s: float
    model: str = ""  # slots are numbered for each model
    covered_tokens: int = 0
    covered_by: str = ""
    contained: bool = False


class SavedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A saved conversation. `usable` is false when no model that is served fits it any more."""

    saved_id: str
    size_bytes: int
    idle_s: float
    usable: bool = True


class SavePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, deletions first: the disk must never hold more than its bound. `free` are idle conversations that
    are on the disk already, near enough: their memory can go without a write."""

    save: tuple[Candidate, ...] = ()
    delete: tuple[str, ...] = ()
    free: tuple[Candidate, ...] = ()


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a conversation a saved copy has."""

    tokens: int = 0
    saved_id: str = ""
    contained: bool = False  # the copy holds nothing beyond these tokens


def covering(scope: Scope, ids: Sequence[int], saved: Sequence[SavedSlot]) -> Coverage:
    """The saved copy that has most of the beginning of `ids` in this scope; of equals the one with the least else."""
    wanted = as_ids(ids)
    best, best_rank = Coverage(), (0, 0)
    for copy in saved:
        if copy.scope != scope:
            continue
        tokens = common_tokens(wanted, as_ids(copy.ids))
        rank = (tokens, -len(copy.ids))
        if tokens and (not best.tokens or rank > best_rank):
            best = Coverage(tokens=tokens, saved_id=copy.saved_id, contained=tokens == len(copy.ids))
            best_rank = rank
    return best


class SavePolicy:
    """Decides, and remembers how much may be written: a token bucket that holds an hour's bytes and fills evenly.

    `now_s` is monotonic; were it to go backwards nothing would be granted for it, and no leap grants more than an
    hour's bytes. `written_bytes` were written shortly before (by the process before this one), so that a service in
    a restart loop does not start with a full bucket every time.
    """

    def __init__(self, settings: KvSettings, now_s: float, *, written_bytes: int = 0) -> None:
        self._settings = settings
        self._left_bytes = float(max(0, settings.saved_hourly_bytes - written_bytes))
        self._filled_s = now_s
        self._refused_s: float | None = None

    def tune(self, settings: KvSettings) -> None:
        """New settings. What may be written fills up at the new rate, and never beyond an hour's bytes."""
        self._settings = settings

    def refused(self, now_s: float) -> None:
        """The storage refused a write: nothing is planned for `RETRY_S`, but at a stop."""
        self._refused_s = now_s

    def decide(
        self,
        candidates: Sequence[Candidate],
        saved: Sequence[SavedFile],
        now_s: float,
        *,
        at_stop: bool = False,
    ) -> SavePlan:
        """What to write and what to delete now. The bytes of the plan count as written, whatever becomes of it: a
        write that failed half-way wears flash as well.

        The longest idle go first, because they wait for their memory to be freed. `at_stop`: nothing needs to have
        been idle, and the conversation used last goes first: it is the most likely to go on.
        """
        self._fill(now_s)
        if not self._settings.save:
            # Nothing would ever read or replace them, and who switches saving off does not expect them to stay.
            return SavePlan(delete=tuple(copy.saved_id for copy in saved))
        waiting = self._refused_s is not None and 0 <= now_s - self._refused_s < RETRY_S
        worthy = [one for one in candidates if self._worth(one, at_stop) and (at_stop or not waiting)]
        worthy.sort(key=lambda candidate: candidate.idle_s, reverse=not at_stop)
        kept = _Kept(saved, self._settings.saved_max_bytes)
        chosen: list[Candidate] = []
        for candidate in worthy:
            if candidate.size_bytes > self._left_bytes or candidate.size_bytes > kept.room_bytes:
                continue
            self._left_bytes -= candidate.size_bytes
            if candidate.contained:
                kept.drop(candidate.covered_by)
            kept.add(candidate.size_bytes)
            chosen.append(candidate)
        deleted = kept.dropped()
        free = [one for one in candidates if self._idle(one) and _covered(one) and one.covered_by not in deleted]
        return SavePlan(save=tuple(chosen), delete=deleted, free=tuple(free))

    def _worth(self, candidate: Candidate, at_stop: bool) -> bool:
        long_enough = candidate.tokens >= self._settings.saved_min_tokens
        return long_enough and (at_stop or self._idle(candidate)) and not _covered(candidate)

    def _idle(self, candidate: Candidate) -> bool:
        return candidate.idle_s >= self._settings.save_after_s

    def _fill(self, now_s: float) -> None:
        hourly = self._settings.saved_hourly_bytes
        elapsed_s = min(max(0.0, now_s - self._filled_s), HOUR_S)
        self._left_bytes = min(float(hourly), self._left_bytes + elapsed_s / HOUR_S * hourly)
        self._filled_s = now_s


def _covered(candidate: Candidate) -> bool:
    return candidate.covered_tokens >= MOSTLY_COVERED * candidate.tokens


class _Kept:
    """The files as they will be. The useless go first, then those not used for longest."""

    def __init__(self, saved: Sequence[SavedFile], limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._old = sorted(saved, key=lambda copy: (copy.usable, -copy.idle_s))
        self._old_bytes = sum(copy.size_bytes for copy in saved)
        self._new_bytes = 0
        self._dropped: list[str] = []
        self._shrink()

    @property
    def room_bytes(self) -> int:
        """The largest file that fits when every old one goes."""
        return self._limit_bytes - self._new_bytes

    def add(self, size_bytes: int) -> None:
        self._new_bytes += size_bytes
        self._shrink()

    def drop(self, saved_id: str) -> None:
        for index, copy in enumerate(self._old):
            if copy.saved_id == saved_id:
                self._old_bytes -= copy.size_bytes
                self._dropped.append(self._old.pop(index).saved_id)
                return

    def dropped(self) -> tuple[str, ...]:
        return tuple(self._dropped)

    def _shrink(self) -> None:
        while self._old and self._old_bytes + self._new_bytes > self._limit_bytes:
            self.drop(self._old[0].saved_id)
