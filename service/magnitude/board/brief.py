"""The board in brief: what is shown of a snapshot in `/v1/magnitude/state` and the metrics."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from magnitude.board.events import EventsState
from magnitude.board.snapshot import ClockedDevice, Fan, Firmware, Power, Snapshot, TempSensor


class ClockState(msgspec.Struct, frozen=True, kw_only=True):
    """One clock policy. `refusal` says why its limit is not as asked for ("": it is)."""

    name: str
    cpus: tuple[int, ...] = ()
    cur_khz: int | None = None
    cap_khz: int | None = None
    min_khz: int | None = None
    max_khz: int | None = None
    governor: str = ""
    writable: bool = False
    refusal: str = ""


class BoardState(msgspec.Struct, frozen=True, kw_only=True):
    """`profile` is what is taken for known of the board, and `title` its name; of a `simulated` one nothing here is
    measured. `age_s` is how old the view is (None: there is none yet)."""

    profile: str = ""
    title: str = ""
    simulated: bool = False
    age_s: float | None = None
    hottest_c: float | None = None
    fused_c: float | None = None
    online: tuple[int, ...] = ()
    usable_threads: int = 0
    temps: tuple[TempSensor, ...] = ()
    clocks: tuple[ClockState, ...] = ()
    devices: tuple[ClockedDevice, ...] = ()
    firmware: Firmware = Firmware()
    power: Power = Power()
    fans: tuple[Fan, ...] = ()
    events: EventsState = EventsState()


def in_brief(
    snapshot: Snapshot | None,
    *,
    profile: str,
    title: str,
    simulated: bool,
    now_s: float,
    refusals: Mapping[str, str],
    events: EventsState,
) -> BoardState:
    """`refusals` are the reasons of refused clock limits, by policy."""
    if snapshot is None:
        return BoardState(profile=profile, title=title, simulated=simulated, events=events)
    return BoardState(
        profile=profile,
        title=title,
        simulated=simulated,
        age_s=round(max(0.0, now_s - snapshot.at_s), 3),
        hottest_c=snapshot.hottest_c,
        fused_c=snapshot.fused_c,
        online=snapshot.online,
        usable_threads=snapshot.usable_threads,
        temps=snapshot.temps,
        clocks=tuple(
            ClockState(
                name=clock.name,
                cpus=clock.cpus,
                cur_khz=clock.cur_khz,
                cap_khz=clock.cap_khz,
                min_khz=clock.min_khz,
                max_khz=clock.max_khz,
                governor=clock.governor,
                writable=clock.writable,
                refusal=refusals.get(clock.name, ""),
            )
            for clock in snapshot.clocks
        ),
        devices=snapshot.devices,
        firmware=snapshot.firmware,
        power=snapshot.power,
        fans=snapshot.fans,
        events=events,
    )
