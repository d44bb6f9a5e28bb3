"""The running batch of one model: generations join and leave between any two steps.

Prompts enter one after the other, piece by piece, in a row of their own. A generation whose prompt is in gets a row
among those that decode together. Rows of one adapter lie side by side, since a run computes with one adapter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import msgspec

from magnitude.engine.decoder import Decoder
from magnitude.engine.draft_control import DraftCosts
from magnitude.engine.generation import Generation
from magnitude.engine.message import Message
from magnitude.engine.protocol import StepKind
from magnitude.engine.run_costs import RunCosts
from magnitude.engine.sampling import F32
from magnitude.engine.session_messages import RunPhase
from magnitude.engine.session_set import SessionSet
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.speculation import Draft

log = logging.getLogger(__name__)

# A run's result for one of its members: messages for the service, or why it failed.
Outcome = tuple[Generation, list[Message] | Exception]


class Ran(msgspec.Struct, frozen=True):
    """One graph run that took place, by the model's own session (None) or a further one."""

    kind: StepKind
    rows: int
    tokens: int
    run_s: float
    session: SessionSpec | None = None


class RunningBatch:
    """The open generations of one model. Each `..._step` does one graph run, by the session that `sessions` names."""

    def __init__(
        self,
        decoder: Decoder,
        max_batch: int,
        clock: Callable[[], float] = time.monotonic,
        sessions: SessionSet | None = None,
    ) -> None:
        self.draft_costs = DraftCosts()
        self._costs: dict[SessionSpec | None, RunCosts] = {None: RunCosts()}
        self._sessions = sessions if sessions is not None else SessionSet(None)
        self._decoder = decoder
        self._max_batch = max_batch
        self._clock = clock
        self._entering: list[Generation] = []
        self._decoding: list[Generation] = []
        self._turn = 0  # which adapter's rows come next
        self._to_ask: list[Generation] = []  # for a draft, in this turn
        self._asked = 0  # who is asked first changes, since there may be no time for all

    def join(self, generation: Generation) -> None:
        self._entering.append(generation)
        self._fill()

    def leave(self, generation: Generation) -> None:
        """The generation takes part no more; its slot is free at once."""
        if generation in self._entering:
            self._entering.remove(generation)
        elif generation in self._decoding:
            self._take_out(generation)
            self._fill()
        generation.close()

    @property
    def members(self) -> list[Generation]:
        return [*self._entering, *self._decoding]

    @property
    def decoding(self) -> int:
        return len(self._decoding)

    @property
    def entering(self) -> bool:
        """Whether a prompt is on its way in, or a full slot makes room. Others wait only while no row is free."""
        return self._next_to_enter() is not None

    def forget(self, session: SessionSpec) -> None:
        """Drop what is known of a session that is no more; made again, it may be on other cores or beside others."""
        self._costs.pop(session, None)
        self.draft_costs.run_by(None)
        self.draft_costs.forget(session)

    def costs_of(self, session: SessionSpec | None) -> RunCosts:
        """What runs by that session take."""
        if session not in self._costs:
            self._costs[session] = RunCosts(like=self._costs[None])
        return self._costs[session]

    @property
    def step_s(self) -> float:
        """What the next decode step is expected to take; 0 while nothing is known."""
        return self.costs_of(self._sessions.in_force("decode")).decode_s(self.decoding)

    def _in_force(self, phase: RunPhase, adapter: str) -> SessionSpec | None:
        return self._decoder.runs_by(self._sessions.in_force(phase), adapter)

    def _take(self, phase: RunPhase, adapter: str) -> SessionSpec | None:
        return self._decoder.runs_by(self._sessions.take(phase), adapter)

    def decode_step(self) -> tuple[Ran, list[Outcome]]:
        """One token for every generation that decodes (for those of one adapter, where there are several)."""
        groups = [list(members) for _, members in groupby(self._decoding, key=lambda member: member.adapter)]
        self._turn = (self._turn + 1) % len(groups)
        members = groups[self._turn]
        first_row = self._decoding.index(members[0])
        by = self._take("decode", members[0].adapter)
        started_s = self._clock()
        outcomes = self._step(members, first_row, by)
        ran = Ran("decode", len(members), 1, self._clock() - started_s, by)
        self.costs_of(by).decoded(ran.rows, ran.run_s)
        in_force = self._in_force("decode", members[0].adapter)
        if by == in_force:  # a trial's step says nothing about the session that drafts are weighed by
            self.draft_costs.run_by(in_force)
            self.draft_costs.observe_step(ran.rows, ran.run_s)
        self._settle(outcomes)
        return ran, outcomes

    def begin_turn(self) -> None:
        """From now on each generation may be asked for a draft once."""
        if self._decoder.can_verify:
            self._asked += 1
            first = self._asked % max(1, len(self._decoding))
            self._to_ask = [*self._decoding[first:], *self._decoding[:first]]

    @property
    def drafting(self) -> bool:
        """Whether somebody may have a draft that was not asked for yet."""
        return any(member.speculates for member in self._to_ask)

    def verify_step(self, limit_s: float | None) -> tuple[Ran, list[Outcome]] | None:
        """Verify the next draft that somebody has and that takes no longer than `limit_s`; None: there is none."""
        rows = len(self._decoding)
        while self._to_ask:
            member = self._to_ask.pop(0)
            in_force = self._in_force("decode", member.adapter)
            self.draft_costs.run_by(in_force)
            draft = member.draft(rows) if member in self._decoding else None
            if draft is None or (limit_s is not None and self._verify_s(draft) > limit_s):
                continue
            by = self._take("decode", member.adapter)
            started_s = self._clock()
            ids = [*member.next_ids(), *draft.ids]
            try:
                row, past = self._decoding.index(member), member.past
                logits = _logits(by, partial(self._decoder.extend, row, ids, past, "all"))
                outcome: Outcome = (member, member.verified(draft, logits))
            except MemoryError:
                raise
            except Exception as error:
                outcome = (member, error)
            ran = Ran("verify", 1, len(ids), self._clock() - started_s, by)
            expected_s = self._verify_s(draft)
            member.speculated(rows, ran.run_s if by == in_force or not expected_s else expected_s)
            self._settle([outcome])
            return ran, [outcome]
        return None

    def _verify_s(self, draft: Draft) -> float:
        return self.draft_costs.verify_s(len(draft.ids) + 1) if self.draft_costs.known else 0.0

    def prefill_step(self, limit_s: float | None) -> tuple[Ran, list[Outcome]]:
        """The next piece of a prompt: as large as it may be, or what takes no longer than `limit_s`."""
        member = self._next_to_enter()
        assert member is not None, "asked only while something enters"
        if member.sliding:
            return self._slide_step(member, limit_s)
        size = member.largest_piece
        by = self._take("prefill", member.adapter)
        if limit_s is not None:
            size = self.costs_of(by).largest_piece(limit_s, size)
        ids = member.next_ids(size)
        started_s = self._clock()
        try:
            self._decoder.show(self._decoder.prefill_row, member.slot, member.adapter)
            logits = _logits(by, partial(self._decoder.extend, self._decoder.prefill_row, ids, member.past))[0]
            outcome: Outcome = (member, member.computed(ids, logits))
        except MemoryError:
            raise
        except Exception as error:
            outcome = (member, error)
        ran = Ran("prefill", 1, len(ids), self._clock() - started_s, by)
        self.costs_of(by).extended(ran.tokens, ran.run_s)
        self._settle([outcome])
        return ran, [outcome]

    def _slide_step(self, member: Generation, limit_s: float | None) -> tuple[Ran, list[Outcome]]:
        """Make room in the slot of an answer that filled it, piece by piece like a prompt: others go on meanwhile."""
        started_s = self._clock()
        moved = member.slide(limit_s)
        self._settle([(member, [])])
        return Ran("slide", 1, moved, self._clock() - started_s), [(member, [])]

    def _next_to_enter(self) -> Generation | None:
        """First come, first served, except that a prompt of one piece does not wait for a long one."""
        waiting = [member for member in self._entering if member.prefilling or member.sliding]
        if not waiting:
            return None
        short = [member for member in waiting if member.prompt_left <= member.largest_piece]
        return (short or waiting)[0]

    def _step(self, members: Sequence[Generation], first_row: int, by: SessionSpec | None) -> list[Outcome]:
        ids = [member.next_ids()[0] for member in members]
        try:
            logits = _logits(by, partial(self._decoder.step, ids, [member.past for member in members], first_row))
        except MemoryError:
            raise
        except Exception as error:
            if len(members) == 1:
                return [(members[0], error)]
            # One member may be at fault. Each does its step alone, so that the others go on.
            return [self._step([member], first_row + at, by)[0] for at, member in enumerate(members)]
        outcomes: list[Outcome] = []
        for member, token, row in zip(members, ids, logits, strict=True):
            try:
                outcomes.append((member, member.computed([token], row, len(members))))
            except MemoryError:
                raise
            except Exception as error:
                outcomes.append((member, error))
        return outcomes

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        """Let those leave that are over, and those in whose prompt is."""
        for member, result in outcomes:
            if isinstance(result, Exception):
                member.finished = True
            if member.finished:
                self.leave(member)
            elif member.sliding and member in self._decoding:
                self._take_out(member)
                self._entering.append(member)
        self._fill()

    def _take_out(self, member: Generation) -> None:
        """The last row fills the gap: showing a slot elsewhere costs as much as a few positions of a prompt."""
        last = self._decoding.pop()
        if last is not member:
            self._decoding[self._decoding.index(member)] = last

    def _fill(self) -> None:
        """Give rows to generations whose prompt is in, and each one that decodes its own slot in its row."""
        ready = [member for member in self._entering if not (member.prefilling or member.sliding)]
        for member in ready[: self._max_batch - len(self._decoding)]:
            self._entering.remove(member)
            self._decoding.append(member)
        if len({member.adapter for member in self._decoding}) > 1:
            self._decoding.sort(key=lambda member: member.adapter)
        for row, member in enumerate(self._decoding):
            self._decoder.show(row, member.slot, member.adapter)


def _logits(by: SessionSpec | None, run: Callable[..., F32]) -> F32:
    """What `run(by=…)` gives: once more by the own session where a further one fails, whose run wrote at most what
    this one writes. Raises what the own session raises."""
    try:
        return run(by=by)
    except MemoryError:
        raise
    except Exception as error:
        if by is None:
            raise
        log.warning("a run by the session of %s failed, the model's own one does it: %s", by.session_id, error)
        return run(by=None)
