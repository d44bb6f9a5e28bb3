"""Agents in a closed loop: each reads, answers, waits for its tool, and only then asks again. Pure but for its own
seeded chance; time comes from outside."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal

import msgspec

from magnitude.board.workload import Load as BoardLoad
from magnitude.board.workload import Pool, Progress, Work
from magnitude.governor.thermal_terms import Phase
from magnitude.simulate.load import AgentKind, Load, Spread

# Length of the past enters a step's time by its KV bytes, a few percent for a thousand tokens; rounded so that equal
# steps are computed once.
PAST_ROUNDED_TOKENS = 128


class Answered(msgspec.Struct, frozen=True):
    """A turn that is over: how long it was computed for, and tokens that it read and wrote."""

    run_s: float
    tokens: int


State = Literal["away", "queued", "reading", "writing"]


class Agent:
    """One agent. `left_tokens` are those still to read or write; `first_token_s` of each turn goes to `ttft_s`."""

    def __init__(self, kind: AgentKind, chance: random.Random, begins_s: float) -> None:
        self.kind = kind
        self.state: State = "away"
        self.until_s = begins_s
        self.left_tokens = 0.0
        self.past_tokens = kind.cached_tokens
        self.asked_s = 0.0
        self.began_s = 0.0
        self.turn_tokens = 0
        self._chance = chance
        self._turn = 0

    def ask(self) -> None:
        """Come back with something to read."""
        kind = self.kind
        if self._turn == 0:
            self.past_tokens = kind.cached_tokens
        self.state, self.asked_s = "queued", self.until_s
        self.left_tokens = max(1.0, drawn(kind.turn_tokens if self._turn else kind.task_tokens, self._chance))
        self.turn_tokens = round(self.left_tokens)

    def write(self, read_tokens: float) -> None:
        """All is read: begin to answer."""
        self.past_tokens += round(read_tokens)
        self.state = "writing"
        self.left_tokens = float(round(drawn(self.kind.answer_tokens, self._chance)))
        self.turn_tokens += round(self.left_tokens)

    def leave(self, now_s: float) -> None:
        """The answer is there: go to the tool, or rest after a task."""
        self._turn = (self._turn + 1) % self.kind.turns
        self.state = "away"
        self.until_s = now_s + drawn(self.kind.wait_s if self._turn else self.kind.rest_s, self._chance)


def drawn(spread: Spread, chance: random.Random) -> float:
    """One figure of the spread."""
    return chance.triangular(spread.low, spread.high, spread.mode)


class Agents:
    """All agents of a load. `limit` generations run at once at most (None: as many as there are slots)."""

    def __init__(self, load: Load) -> None:
        chance = random.Random(load.seed)  # noqa: S311 - the same seed, the same load
        self.limit: int | None = None
        self.ttft_s: list[float] = []
        self._answered: list[Answered] = []
        self._load = load
        self._agents = [
            # Not all at the same moment.
            Agent(kind, random.Random(chance.random()), drawn(kind.wait_s, chance))  # noqa: S311 - as above
            for kind in load.agents
            for _ in range(kind.count)
        ]
        self._reading_tokens: dict[int, float] = {}

    @property
    def running(self) -> int:
        return sum(agent.state in ("reading", "writing") for agent in self._agents)

    @property
    def waiting(self) -> int:
        return sum(agent.state == "queued" for agent in self._agents)

    @property
    def reading(self) -> int:
        return sum(agent.state == "reading" for agent in self._agents)

    @property
    def left_to_read(self) -> float:
        """Tokens of the prompt that is being read which are still to come; 0: none is."""
        reader = self._reader()
        return reader.left_tokens if reader is not None else 0.0

    @property
    def writing(self) -> int:
        return sum(agent.state == "writing" for agent in self._agents)

    def phase(self) -> Phase:
        """What runs now."""
        if not self.writing:
            return "prefill" if self.reading else "idle"
        return "mixed" if self.reading else "decode"

    def wake(self, now_s: float) -> None:
        """Let those whose tool has answered ask, and those who asked in if there is room, in the order of asking."""
        for agent in self._agents:
            if agent.state == "away" and agent.until_s <= now_s + 1e-9:
                agent.ask()
        room = min(self._load.slots, self.limit or self._load.slots) - self.running
        for agent in sorted((a for a in self._agents if a.state == "queued"), key=lambda a: a.asked_s)[
            : max(0, room)
        ]:
            agent.state, agent.began_s = "reading", now_s
            self._reading_tokens[id(agent)] = agent.left_tokens

    def work(
        self, pools: Mapping[Phase, Pool], duties: Mapping[Phase, float] | None = None, answers: Pool | None = None
    ) -> Work:
        """What the board has to do now, each phase on its threads. `answers`: those of decode steps between which
        prompts enter, where they are others."""
        phase = self.phase()
        if phase == "idle":
            return Work(phase="idle", threads=1)
        past = max((agent.past_tokens for agent in self._agents if agent.state == "writing"), default=0)
        return Work(
            phase=phase,
            threads=pools[phase].threads,
            cpus=pools[phase].cpus,
            answers=answers if phase == "mixed" else None,
            rows=max(1, self.writing),
            duty=1.0 if duties is None else duties[phase],
            model=self._load.model.cost(past // PAST_ROUNDED_TOKENS * PAST_ROUNDED_TOKENS),
            piece_tokens=self._load.piece_tokens,
        )

    def take_answered(self) -> list[Answered]:
        """Turns that are over since this was asked last."""
        taken, self._answered = self._answered, []
        return taken

    def next_event_s(self, now_s: float, load: BoardLoad, duty: float) -> float:
        """Seconds until the first agent changes its state, if the board goes on as now; endless when none will."""
        events = [agent.until_s - now_s for agent in self._agents if agent.state == "away"]
        reader = self._reader()
        if reader is not None and load.prefill_tokens_s * duty > 0:
            events.append(reader.left_tokens / (load.prefill_tokens_s * duty))
        rows = self.writing
        if rows and load.decode_tokens_s * duty > 0:
            each = load.decode_tokens_s * duty / rows
            events += [agent.left_tokens / each for agent in self._agents if agent.state == "writing"]
        return min(events, default=float("inf"))

    def advance(self, now_s: float, progress: Progress) -> None:
        """Time has come to `now_s`, with this progress; what it is more than an agent needs is lost, as a step's
        is."""
        rows = self.writing
        reader = self._reader()
        each = progress.decode_tokens / rows if rows else 0.0
        for agent in self._agents:
            if agent.state == "writing":
                agent.left_tokens -= each
                agent.past_tokens += round(each)
                if agent.left_tokens <= 1e-6:
                    self._answered.append(Answered(now_s - agent.began_s, agent.turn_tokens))
                    agent.leave(now_s)
        if reader is not None:
            reader.left_tokens -= progress.prefill_tokens
            if reader.left_tokens <= 1e-6:
                reader.write(self._reading_tokens.pop(id(reader)))
                # The last step of a prompt gives the first token.
                self.ttft_s.append(now_s - reader.asked_s)

    def _reader(self) -> Agent | None:
        """One prompt is read at a time, the one that was asked first."""
        readers = [agent for agent in self._agents if agent.state == "reading"]
        return min(readers, key=lambda agent: agent.asked_s) if readers else None
