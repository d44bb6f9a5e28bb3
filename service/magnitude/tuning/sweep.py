"""What is compared, in which order, and what follows. Pure.

Memory first (does keeping the memory of runs pay?), then threads alone, to find the knee, then fusion plans, and
pieces of prompts last. Each stage goes on from the best of the one before. A challenger is timed in turn with the
model's own session under the same conditions, so what counts is the ratio, with its error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from magnitude.policy.candidates import CHUNK_FACTORS, LEAST_CHUNK, MOST_CHUNK, session_on, thread_counts
from magnitude.policy.duel import Duel
from magnitude.policy.learned import Choice, Entry, Evidence
from magnitude.policy.rules import ModelFacts
from magnitude.policy.situation import Part, Situation, key_of
from magnitude.policy.terms import BoardSeen

Stage = Literal["memory", "threads", "fusion", "pieces"]
STAGES: tuple[Stage, ...] = ("memory", "threads", "fusion", "pieces")

# Pairs that are compared. Fewer than the loop's window while it serves: nothing else runs, so that times scatter by a
# few per cent, and a sweep over a dozen sessions should be over in minutes.
PAIRS = 24
# Standard errors that must lie between a ratio and what it has to reach: of forty comparisons of equal ways one looks
# better by accident.
SURE = 2.0
# Rows that decode together, and the pieces in which prompts enter: alone, and beside answers.
ROWS = (1, 2, 4)
SMALL_PIECE = 32
# Of an encoder's text.
ENCODED_TOKENS = 64


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison: `challenger` against `base`, which is the model's own way."""

    stage: Stage
    part: Part
    key: str
    base: Choice
    challenger: Choice
    rows: int
    tokens: int


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: time of the challenger by the base's, with the standard error of its logarithm over `pairs`;
    seconds of a unit of work by both. `refused`: it could not be compared, and why. `added_bytes` is what the
    challenger's session takes."""

    step: Step
    ratio: float = 1.0
    error: float = 0.0
    pairs: int = 0
    base_s: float = 0.0
    challenger_s: float = 0.0
    p95_s: float = 0.0
    added_bytes: int = 0
    refused: str = ""


class Sweep:
    """Asked for the `next` step until there is none. `before` is what an earlier run compared already."""

    def __init__(
        self, facts: ModelFacts, board: BoardSeen, *, least_gain: float, before: Iterable[Compared] = ()
    ) -> None:
        self._facts = facts
        self._board = board
        self._least_gain = least_gain
        self.compared: dict[Step, Compared] = {one.step: one for one in before}

    def next(self) -> Step | None:
        return next((step for step in self.steps() if step not in self.compared), None)

    def add(self, compared: Compared) -> None:
        self.compared[compared.step] = compared

    def steps(self) -> list[Step]:
        """All that are known by now: those of a stage depend on what the stage before it found."""
        found: list[Step] = []
        for part, key, rows, tokens in self.situations():
            best = base = self._base(part)
            tried = {base}
            # Another size of pieces is the request's; beside answers their time limit decides.
            for stage in STAGES if tokens == self._facts.chunk else STAGES[:-1]:
                steps = [
                    Step(stage=stage, part=part, key=key, base=base, challenger=other, rows=rows, tokens=tokens)
                    for other in self._challengers(stage, part, best)
                    if other not in tried
                ]
                found += steps
                tried |= {step.challenger for step in steps}
                if any(step not in self.compared for step in steps):
                    break
                best = self._best(tried, part, key)
        return found

    def situations(self) -> list[tuple[Part, str, int, int]]:
        """Part, key, rows and tokens of what is swept."""
        board = self._board
        cores, share = max(1, board.usable), board.clock_share
        if self._facts.kind != "decoder":
            at = Situation(tokens=ENCODED_TOKENS, cores=cores, clock_share=share)
            return [("encode", key_of("encode", at), 1, ENCODED_TOKENS)]
        found: list[tuple[Part, str, int, int]] = []
        for tokens in (self._facts.chunk, SMALL_PIECE):
            at = Situation(tokens=tokens, cores=cores, clock_share=share)
            found.append(("prefill", key_of("prefill", at), 1, tokens))
        for rows in ROWS:
            if rows <= self._facts.max_batch:
                at = Situation(rows=rows, cores=cores, clock_share=share)
                found.append(("decode", key_of("decode", at), rows, 1))
        return list({(part, key): (part, key, rows, tokens) for part, key, rows, tokens in found}.values())

    def entries(self) -> tuple[Entry, ...]:
        """What was found, as the table keeps it. Times are the base's, as measured beside each challenger."""
        found = []
        for part, key, _, _ in self.situations():
            base = self._base(part)
            mine = [one for one in self._of(part, key) if not one.refused]
            if not mine:
                continue
            chosen = self._best({base, *(one.step.challenger for one in mine)}, part, key)
            base_s = math.exp(sum(math.log(one.base_s) for one in mine) / len(mine))
            evidence = [Evidence(choice=base, cost_s=base_s, p95_s=base_s, weight=float(len(mine) * PAIRS))]
            evidence += [
                Evidence(
                    choice=one.step.challenger,
                    cost_s=base_s * one.ratio,
                    log_spread=one.error * math.sqrt(one.pairs),
                    p95_s=max(one.p95_s, base_s * one.ratio),
                    weight=float(one.pairs),
                )
                for one in mine
            ]
            evidence.sort(key=lambda one: (one.choice != chosen, one.choice.choice_id))
            found.append(Entry(part=part, key=key, chosen=chosen, origin="tuned", evidence=tuple(evidence)))
        return tuple(found)

    def ratio(self, choice: Choice, part: Part, key: str) -> float:
        """Time of `choice` by the base's; infinite where it could not be compared."""
        if choice == self._base(part):
            return 1.0
        known = [one for one in self._of(part, key) if one.step.challenger == choice]
        return known[0].ratio if known and not known[0].refused else math.inf

    # --- inside ---

    def _of(self, part: Part, key: str) -> list[Compared]:
        return [one for one in self.compared.values() if (one.step.part, one.step.key) == (part, key)]

    def _base(self, part: Part) -> Choice:
        return Choice(session=self._facts.own, chunk=self._facts.chunk if part == "prefill" else 0)

    def _best(self, choices: Iterable[Choice], part: Part, key: str) -> Choice:
        """The knee: of all that are within the least gain of the fastest the one with the fewest threads, the least
        memory kept, and the model's own graph. What is not surely better than the base does not count."""
        base = self._base(part)
        ratios = {choice: self.ratio(choice, part, key) for choice in choices}
        ratios = {
            choice: ratio for choice, ratio in ratios.items() if choice == base or self._better(choice, part, key)
        }
        limit = min(ratios.values()) / (1.0 - self._least_gain)

        def modesty(choice: Choice) -> tuple[int, bool, bool, bool, float]:
            session = choice.session
            assert session is not None, "only weights have no session, and are not swept"
            odd = (session.arena, bool(session.graph_file), choice.chunk != base.chunk)
            return (session.threads, *odd, ratios[choice])

        return min((choice for choice in ratios if ratios[choice] <= limit), key=modesty)

    def _better(self, choice: Choice, part: Part, key: str) -> bool:
        """Whether it is surely faster than the base by the least gain; with fewer threads by anything."""
        known = next(one for one in self._of(part, key) if one.step.challenger == choice)
        if known.refused:
            return False
        base, session = self._base(part).session, choice.session
        assert base is not None and session is not None, "only weights have no session, and are not swept"
        margin = 0.0 if session.threads < base.threads else self._least_gain
        return known.ratio * math.exp(SURE * known.error) < 1.0 - margin

    def _challengers(self, stage: Stage, part: Part, best: Choice) -> list[Choice]:
        session, facts = best.session, self._facts
        assert session is not None, "only weights have no session, and are not swept"

        def with_session(**changed: object) -> Choice:
            return msgspec.structs.replace(best, session=msgspec.structs.replace(session, **changed))

        match stage:
            case "memory":
                return [with_session(arena=True)]
            case "threads":
                counts = thread_counts(self._board)
                plain = msgspec.structs.replace(session, cpus=())
                return [
                    msgspec.structs.replace(best, session=session_on(self._board, count, plain)) for count in counts
                ]
            case "fusion":
                return [with_session(graph_file=graph) for graph in facts.graphs]
            case "pieces":
                if part != "prefill":
                    return []
                chunks = [int(best.chunk * factor) for factor in CHUNK_FACTORS]
                return [
                    msgspec.structs.replace(best, chunk=chunk)
                    for chunk in chunks
                    if LEAST_CHUNK <= chunk <= MOST_CHUNK
                ]


def compare(step: Step, pairs: Sequence[tuple[float, float]], added_bytes: int) -> Compared:
    """What times of base and challenger, taken in turn, come to. Seconds of whole runs: units are taken out here."""
    sized = step.stage == "pieces"
    units = [choice.chunk if sized else step.tokens for choice in (step.base, step.challenger)]
    if step.part != "prefill":
        units = [1, 1]
    duel = Duel(step.base, step.challenger, window=max(2, len(pairs)), least_gain=0.0)
    base_s, challenger_s = ([pair[at] / units[at] for pair in pairs] for at in (0, 1))
    for one, other in zip(base_s, challenger_s, strict=True):
        duel.add(one, other)
    if not duel.samples:
        return Compared(step=step, refused="nothing could be timed", added_bytes=added_bytes)
    middle = len(pairs) // 2
    return Compared(
        step=step,
        ratio=duel.ratio,
        error=duel.error if math.isfinite(duel.error) else 0.0,
        pairs=duel.samples,
        base_s=sorted(base_s)[middle],
        challenger_s=sorted(challenger_s)[middle],
        p95_s=sorted(challenger_s)[math.ceil(0.95 * len(pairs)) - 1],
        added_bytes=added_bytes,
    )
