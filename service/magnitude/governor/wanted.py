"""What all decisions about the board together ask for at this moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from magnitude.board.snapshot import ClockPolicy
from magnitude.governor.power import PowerLimits, cap_khz
from magnitude.governor.thermal_terms import Effect, PreferSmaller, SetCaps, SetConcurrency, SetDuty, SetThreads


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What heat asks for. `caps_khz` by policy (None: as it was found), `duty` the share of the time in which the
    engine may compute, `concurrency` generations at once (None: as planned). Threads and `smaller` are wishes to the
    policy, which follows them where its measurements agree."""

    caps_khz: dict[str, int | None] = {}
    duty: float = 1.0
    concurrency: int | None = None
    prefill_threads: int | None = None
    decode_threads: int | None = None
    smaller: bool = False

    def after(self, effect: Effect) -> Wanted:
        """With one more decision."""
        match effect:
            case SetCaps(caps_khz):
                return msgspec.structs.replace(self, caps_khz={**self.caps_khz, **caps_khz})
            case SetDuty(share):
                return msgspec.structs.replace(self, duty=share)
            case SetConcurrency(limit):
                return msgspec.structs.replace(self, concurrency=limit)
            case SetThreads(prefill, decode):
                return msgspec.structs.replace(self, prefill_threads=prefill, decode_threads=decode)
            case PreferSmaller(on):
                return msgspec.structs.replace(self, smaller=on)
        return self


def caps_together(
    wanted: Wanted, power: PowerLimits, clocks: Iterable[ClockPolicy], asked: Iterable[str] = ()
) -> dict[str, int | None]:
    """By policy the lower of the limits that heat and the supply ask for. `asked` are policies that were limited
    before: those that nobody limits any more are given back."""
    together: dict[str, int | None] = dict.fromkeys(asked) | wanted.caps_khz
    for clock in clocks:
        by_power = cap_khz(clock.opps_khz, clock.max_khz, power.clock_share)
        if by_power is not None:
            together[clock.name] = lower(together.get(clock.name), by_power)
    return together


def lower(one: int | None, other: int | None) -> int | None:
    """Of two limits the one that holds; None limits nothing."""
    limits = [limit for limit in (one, other) if limit is not None]
    return min(limits, default=None)


def in_words(caps_khz: Mapping[str, int | None]) -> str:
    """Limits as a person reads them: "policy0 1500 MHz, policy4 as found"."""
    texts = (f"{name} {'as found' if khz is None else f'{khz / 1000:.0f} MHz'}" for name, khz in caps_khz.items())
    return ", ".join(texts) or "none"
