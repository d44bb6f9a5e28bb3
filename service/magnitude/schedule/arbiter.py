"""The arbiter: one account of cores and memory over all engine processes. A pure state machine.

An engine says what it wants and is told what it may use, as totals. What it may use is its own until it gives some
back or dies, so that the sum never exceeds the account: an engine whose share becomes smaller is *asked* to give
back, and only what it gave back goes to others. Threads are shared evenly (nobody gets more than it wants, everybody
at least one); memory is granted whole or not at all, first come, first served, because half a model is no model.

`apply(event)` returns effects and does nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Want(msgspec.Struct, frozen=True):
    """An engine (a new one or a known one) wants to use so much in total. Wanting less gives the rest back."""

    engine: str
    threads: int
    memory_bytes: int


class GaveBack(msgspec.Struct, frozen=True):
    """The engine, asked to, uses no more than this from now on."""

    engine: str
    threads: int
    memory_bytes: int


class EngineGone(msgspec.Struct, frozen=True):
    """The engine is dead; what it used is free."""

    engine: str


class SetAccount(msgspec.Struct, frozen=True):
    """What there is for all engines together has changed (heat, memory pressure, another quota)."""

    threads: int
    memory_bytes: int


ArbiterEvent = Want | GaveBack | EngineGone | SetAccount


class MayUse(msgspec.Struct, frozen=True):
    """The engine's new allowance, in total."""

    engine: str
    threads: int
    memory_bytes: int


class MustWait(msgspec.Struct, frozen=True):
    """What the engine wants is not there now; it is told when it is. The missing amounts are beyond its allowance;
    `possible` is False when not even the whole account would do."""

    engine: str
    missing_threads: int
    missing_memory_bytes: int
    possible: bool


class GiveBack(msgspec.Struct, frozen=True):
    """Ask the engine to use no more than this and to say `GaveBack`."""

    engine: str
    threads: int
    memory_bytes: int


ArbiterEffect = MayUse | MustWait | GiveBack


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine wants and what it may use, for metrics and the admin."""

    engine: str
    wanted_threads: int
    wanted_memory_bytes: int
    threads: int
    memory_bytes: int


class _Engine(msgspec.Struct):
    wanted_threads: int
    wanted_memory_bytes: int
    threads: int = 0
    memory_bytes: int = 0
    asked: tuple[int, int] | None = None  # what it was asked to come down to


class Arbiter:
    """The account: `threads` that may compute at once and `memory_bytes` for all engines together."""

    def __init__(self, *, threads: int, memory_bytes: int) -> None:
        self._threads = max(0, threads)
        self._memory_bytes = max(0, memory_bytes)
        self._engines: dict[str, _Engine] = {}  # in order of arrival

    @property
    def free_threads(self) -> int:
        """Negative after the account became smaller, until engines have given back."""
        return self._threads - sum(engine.threads for engine in self._engines.values())

    @property
    def free_memory_bytes(self) -> int:
        """Likewise."""
        return self._memory_bytes - sum(engine.memory_bytes for engine in self._engines.values())

    def allowances(self) -> tuple[Allowance, ...]:
        return tuple(
            Allowance(
                engine=name,
                wanted_threads=engine.wanted_threads,
                wanted_memory_bytes=engine.wanted_memory_bytes,
                threads=engine.threads,
                memory_bytes=engine.memory_bytes,
            )
            for name, engine in self._engines.items()
        )

    def apply(self, event: ArbiterEvent) -> list[ArbiterEffect]:
        before = {name: (engine.threads, engine.memory_bytes) for name, engine in self._engines.items()}
        wants: str | None = None
        match event:
            case Want(name, threads, memory_bytes):
                wants = name
                engine = self._engines.setdefault(name, _Engine(0, 0))
                engine.wanted_threads, engine.wanted_memory_bytes = max(1, threads), max(0, memory_bytes)
                self._lower(engine, engine.wanted_threads, engine.wanted_memory_bytes)
            case GaveBack(name, threads, memory_bytes):
                known = self._engines.get(name)
                if known is not None:
                    self._lower(known, threads, memory_bytes)
                    known.asked = None
            case EngineGone(name):
                self._engines.pop(name, None)
            case SetAccount(threads, memory_bytes):
                self._threads, self._memory_bytes = max(0, threads), max(0, memory_bytes)
        shares = _even_shares(self._threads, {n: e.wanted_threads for n, e in self._engines.items()})
        self._raise(shares)
        return [*self._changes(before), *self._waits(wants), *self._recalls(shares)]

    def _lower(self, engine: _Engine, threads: int, memory_bytes: int) -> None:
        engine.threads = min(engine.threads, max(0, threads))
        engine.memory_bytes = min(engine.memory_bytes, max(0, memory_bytes))

    def _raise(self, shares: Mapping[str, int]) -> None:
        """Hand out what is free: threads up to everybody's even share, memory in order of arrival."""
        memory_open = True
        for name, engine in self._engines.items():
            engine.threads += max(0, min(shares[name] - engine.threads, self.free_threads))
            wanted_bytes = engine.wanted_memory_bytes - engine.memory_bytes
            if wanted_bytes <= 0 or engine.wanted_memory_bytes > self._memory_bytes:
                continue  # it has what it wants, or waits for something else than its turn
            if memory_open and wanted_bytes <= self.free_memory_bytes:
                engine.memory_bytes = engine.wanted_memory_bytes
            else:
                memory_open = False  # those behind do not eat up what this one waits for

    def _changes(self, before: Mapping[str, tuple[int, int]]) -> list[ArbiterEffect]:
        return [
            MayUse(name, engine.threads, engine.memory_bytes)
            for name, engine in self._engines.items()
            if (engine.threads, engine.memory_bytes) != before.get(name, (0, 0))
        ]

    def _waits(self, name: str | None) -> list[ArbiterEffect]:
        if name is None:
            return []
        engine = self._engines[name]
        threads = 1 - engine.threads
        memory_bytes = engine.wanted_memory_bytes - engine.memory_bytes
        if threads <= 0 and memory_bytes <= 0:
            return []
        possible = engine.wanted_memory_bytes <= self._memory_bytes and len(self._engines) <= self._threads
        return [MustWait(name, max(0, threads), max(0, memory_bytes), possible)]

    def _recalls(self, shares: Mapping[str, int]) -> list[ArbiterEffect]:
        """Whom to ask for something back, once for each amount: threads above the even share while somebody lacks
        its own; memory, the youngest engine first, as much as the account is overdrawn."""
        lacking = any(engine.threads < shares[name] for name, engine in self._engines.items())
        overdrawn_bytes = max(0, -self.free_memory_bytes)
        effects: list[ArbiterEffect] = []
        for name, engine in reversed(self._engines.items()):
            threads = min(engine.threads, shares[name]) if lacking or self.free_threads < 0 else engine.threads
            taken_bytes = min(engine.memory_bytes, overdrawn_bytes)
            overdrawn_bytes -= taken_bytes
            target = (threads, engine.memory_bytes - taken_bytes)
            if target == (engine.threads, engine.memory_bytes):
                engine.asked = None
            elif target != engine.asked:
                engine.asked = target
                effects.append(GiveBack(name, *target))
        return effects


def _even_shares(threads: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Max-min fair: whoever wants less than an even part gets that, the others share the rest evenly; what does not
    divide goes to those that came first."""
    shares = dict.fromkeys(wanted, 0)
    left = threads
    while left > 0:
        open_names = [name for name in wanted if shares[name] < wanted[name]]
        if not open_names:
            break
        for name in open_names[:left]:
            shares[name] += 1
        left -= min(left, len(open_names))
    return shares
