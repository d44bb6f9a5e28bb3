"""Looks at the board, lets the governors of heat and supply decide, and has it carried out, logged and counted.

When something of this fails itself (a governor, the sampler's thread), the board is held low for a while rather than
left alone: unknown is not cool. Then it is tried again with a governor that knows nothing of before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from magnitude.board.brief import BoardState, in_brief
from magnitude.board.clock_caps import CapOutcome
from magnitude.board.events import EventsState
from magnitude.board.profile import BoardProfile
from magnitude.board.snapshot import ClockPolicy, Firmware, Power, Snapshot
from magnitude.config.power import PowerSettings
from magnitude.config.thermal import ThermalSettings
from magnitude.governor.decision import Decision
from magnitude.governor.heat_decision import decision_of
from magnitude.governor.heat_limits import cannot_wait, limits_with
from magnitude.governor.held_back import held_back
from magnitude.governor.in_force import InForce
from magnitude.governor.power import PowerGovernor, PowerLimits, PowerRules, limits_of
from magnitude.governor.power_state import PowerState, power_state
from magnitude.governor.thermal import ThermalGovernor, state_of
from magnitude.governor.thermal_prior import HeatLimits, prior_of
from magnitude.governor.thermal_report import BoardView, ThermalReport
from magnitude.governor.thermal_sight import blinded, sight_of
from magnitude.governor.thermal_terms import Announce, Effect, LoadSight, SetCaps
from magnitude.governor.wanted import Wanted, caps_together, lower
from magnitude.supervise.decision_log import DecisionLog

log = logging.getLogger("magnitude.board")

# The governor's forecasts are for half a minute and more, and it must not write clocks more often than six times a
# minute; what is urgent (a phase that begins, a chip above its target) does not wait for the next look.
LOOK_EVERY_S = 1.0
# Requests may come and go by the hundred. A look takes 0.2 ms on a desktop's processor, so that even this rate takes
# less than a hundredth of it.
LEAST_BETWEEN_S = 0.05
# Sensors at the processor are read every two seconds at least (`board.sampling_rate`): an older view comes from a
# thread that hangs.
LOST_S = 4.0
# A board without them may have nothing but its supply to tell of, every five seconds (`board.sources`).
LOST_WITHOUT_SENSOR_S = 12.0
# An attempt that takes longer hangs in a driver: until it is done no clock can be set.
STUCK_S = 3.0
# What was refused is asked for again so often: permissions may have been given, a CPU may be back.
RENEW_S = 10.0
# After a failure of our own: long enough for a chip to cool by what is held low, and for the log to stay readable.
RETRY_S = 10.0
# … and then no clock is above its lowest, one answer is written at a time, and half of the time nothing is computed:
# where clocks cannot be set, that halves what heats the chip.
HELD_LOW_DUTY = 0.5
# Restoring limits writes a few small files; a driver that does not answer within this never will.
RESTORE_S = 2.0


class Eyes(Protocol):
    """What sees the board (`board.sampler.Sampler`)."""

    on_snapshot: Callable[[Snapshot], None] | None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def hurry(self) -> None: ...

    def latest(self) -> Snapshot | None: ...


class Caps(Protocol):
    """What limits clocks (`supervise.cap_thread.CapThread`)."""

    def start(self) -> None: ...

    def set(self, caps_khz: Mapping[str, int | None]) -> None: ...

    def renew(self) -> None: ...

    def busy_s(self) -> float: ...

    def stop(self, patience_s: float) -> bool: ...


class Devices(Protocol):
    """What tells of devices that come and go (`board.events.DeviceEvents`)."""

    @property
    def state(self) -> EventsState: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def ensure_alive(self) -> None: ...


class BoardWatch:
    """`run` is a task of the event loop, which nothing here holds up: the board is read and written by threads of
    their own.

    `load` says what the engine is at, and what it did since it was last asked. `pace` lets the engine compute for a
    share of the time, `limit` so many generations at once. `threads` are the engine's (None: the profile's).
    `on_look` is called after each look. `ask_permission` is told of the policies whose clock limit may not be
    written. With `speed` the board's heat passes that much faster than our time, as a simulated one's may.
    """

    def __init__(
        self,
        thermal: ThermalSettings,
        power: PowerSettings,
        *,
        profile: BoardProfile,
        eyes: Eyes,
        caps: Callable[[Callable[[CapOutcome], None]], Caps],
        load: Callable[[], LoadSight],
        pace: Callable[[float], None],
        limit: Callable[[int | None], None],
        threads: int | None = None,
        devices: Devices | None = None,
        ask_permission: Callable[[Sequence[str]], None] = lambda policies: None,
        simulated: bool = False,
        speed: float = 1.0,
        told: Callable[[Decision], None] = lambda decision: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`told` keeps decisions. Raises `ConfigError` for temperatures that do not fit the board's."""
        self._thermal = thermal
        self._power = power
        self._profile = profile
        self._heat_limits = _heat_limits(profile, thermal)
        self._eyes = eyes
        self._caps = caps(self._from_caps)
        self._load = load
        self._pace = pace
        self._limit = limit
        self._threads = threads
        self._devices = devices
        self._ask_permission = ask_permission
        self._simulated = simulated
        self.on_look: Callable[[], None] = lambda: None
        self._speed = speed
        self._clock = clock
        self.decisions = DecisionLog(clock, told)
        self.governor: ThermalGovernor | None = None
        self.power = PowerGovernor(_rules(power))
        self.wanted = Wanted()
        self._power_limits = PowerLimits()
        # Share of the time, generations at once, clock limits: as last handed on.
        self._in_force: tuple[float, int | None, dict[str, int | None]] = (1.0, None, {})
        self._refusals: dict[str, str] = {}
        self._unwritable: frozenset[str] = frozenset()
        self._fault, self._faults, self._retry_s = "", 0, 0.0
        self._renewed_s = self._began_s = clock()
        self._seen = self._lost = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._closed = False

    # --- for others ---

    @property
    def snapshot(self) -> Snapshot | None:
        """The latest look; None: there is none that is fresh."""
        return self._fresh(self._eyes.latest())

    @property
    def temp_c(self) -> float | None:
        """The warmest sensor at the processor; None: none has answered lately."""
        return snapshot.hottest_c if (snapshot := self.snapshot) is not None else None

    @property
    def throttled(self) -> bool | None:
        """Whether firmware, heat or supply hold the board back now; None: it is not seen."""
        if (snapshot := self.snapshot) is None:
            return None
        duty, _, caps_khz = self._in_force
        heat = self.governor.state if self.governor is not None else "cool"
        return held_back(snapshot.firmware, heat, self.power.tier, duty=duty, caps_khz=caps_khz)

    def in_force(self) -> InForce:
        """What heat and supply hold the board to."""
        snapshot, governor = self._eyes.latest(), self.governor
        working = self.wanted
        if governor is not None:
            working = msgspec.structs.replace(working, caps_khz=governor.caps("mixed"))
        clocks = snapshot.clocks if snapshot is not None else ()
        return InForce(
            heat=governor.state if governor is not None else None,
            tier=self.power.tier,
            wanted=self.wanted,
            smaller=self.wanted.smaller or self._power_limits.prefer_smaller,
            asked_khz=self._in_force[2],
            working_khz=caps_together(working, self._power_limits, clocks),
        )

    def phase_changed(self) -> None:
        """The engine began something else: the next look is now."""
        self._eyes.hurry()
        self._wake.set()

    def check(self, thermal: ThermalSettings) -> None:
        """Raises `ConfigError` where these do not fit the board."""
        _heat_limits(self._profile, thermal)

    def tune(self, thermal: ThermalSettings, power: PowerSettings) -> None:
        """New settings, from the next look on. Raises `ConfigError` as `check`."""
        self._heat_limits = _heat_limits(self._profile, thermal)
        self._thermal = thermal
        if self.governor is not None:
            self.governor.limits = self._heat_limits
        if not power.enabled and self._power.enabled:
            self.power = PowerGovernor(_rules(power))
        self.power.rules = _rules(power)
        self._power = power
        self._wake.set()

    async def run(self) -> None:
        """Look until cancelled. `close` ends it in order."""
        self._loop = asyncio.get_running_loop()
        self._eyes.on_snapshot = self._from_eyes
        self._caps.start()
        self._eyes.start()
        if self._devices is not None:
            self._devices.start()
        while not self._closed:
            self.look()
            self._keep_devices_told()
            await asyncio.sleep(LEAST_BETWEEN_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(LEAST_BETWEEN_S, LOOK_EVERY_S / self._speed))
            self._wake.clear()

    async def close(self) -> None:
        """Give the clocks back and end the threads. Nothing is decided after that."""
        self._closed = True
        self._eyes.on_snapshot = None
        if not await asyncio.to_thread(self._caps.stop, RESTORE_S):
            log.error("clock limits could not be put back: a driver does not answer")
        await asyncio.to_thread(self._eyes.stop)
        if self._devices is not None:
            self._devices.stop()

    # --- from threads ---

    def _from_eyes(self, snapshot: Snapshot) -> None:
        if not self._seen or cannot_wait(snapshot, self._heat_limits):
            self._in_loop(self._wake.set)

    def _from_caps(self, outcome: CapOutcome) -> None:
        self._in_loop(partial(self._caps_told, outcome))

    def _in_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
            if loop is not None:
                loop.call_soon_threadsafe(call)

    # --- one look ---

    def look(self) -> None:
        """One look, and what follows from it. Raises nothing."""
        if self._closed:
            return
        now_s = self._clock()
        try:
            snapshot = self._eyes.latest()
            self._seen = snapshot is not None
            self._govern_power(self._fresh(snapshot), now_s)
            if not self._thermal.enabled:
                self._leave_heat_alone()
            elif not self._fault or now_s >= self._retry_s:
                self._govern_heat(snapshot, now_s)
            self._renew(now_s)
        except Exception as error:
            self._failed(error, now_s)
        try:
            self._carry_out(self._eyes.latest())
            self.on_look()
        except Exception:
            log.exception("what was decided about the board could not be carried out")

    def _fresh(self, snapshot: Snapshot | None) -> Snapshot | None:
        if snapshot is None:
            return None
        patience_s = LOST_WITHOUT_SENSOR_S if snapshot.hottest_c is None else LOST_S
        return snapshot if self._clock() - snapshot.at_s <= patience_s else None

    def _govern_power(self, snapshot: Snapshot | None, now_s: float) -> None:
        if not self._power.enabled:
            self._power_limits = PowerLimits()
            return
        power, firmware = (snapshot.power, snapshot.firmware) if snapshot else (Power(), Firmware())
        try:
            changes = self.power.apply(power, firmware, now_s)
            self._power_limits = self.power.limits
        except Exception as error:
            # Nobody knows what the supply can give: not as if it were on mains, not as if it were nearly empty.
            self.power, self._power_limits = PowerGovernor(_rules(self._power)), limits_of("saving")
            self._note_fault("power", error)
            return
        for change in changes:
            decision = Decision(
                source="power", kind="tier", what=f"{change.before} to {change.tier}", reason=change.reason
            )
            self.decisions.add(decision, level=logging.INFO if change.tier == "full" else logging.WARNING)

    def _govern_heat(self, snapshot: Snapshot | None, now_s: float) -> None:
        fresh = self._fresh(snapshot)
        if fresh is None and self.governor is None and now_s - self._began_s < LOST_S:
            return  # the first look takes a moment
        self._say_lost(fresh is None, now_s)
        known = snapshot or Snapshot(at_s=self._began_s)
        sight = sight_of(known, self._load(), refused=self._refused(known.clocks))
        if fresh is None:
            sight = blinded(sight, now_s - known.at_s)
        governor = self.governor
        if governor is None:
            governor = ThermalGovernor(
                prior_of(self._profile, sight.clusters, threads=self._threads), self._heat_limits
            )
        effects = governor.apply(sight, now_s * self._speed)
        if self.governor is None:
            self.governor, self.wanted = governor, Wanted()  # what was held low is given back
        self._fault = ""
        self._say_unwritable(known.clocks)
        for effect in effects:
            self.wanted = self.wanted.after(effect)
            self._note(effect)

    def _leave_heat_alone(self) -> None:
        if self.wanted != Wanted():
            self.decisions.add(
                Decision(source="thermal", kind="state", what="left to the firmware", reason="switched off")
            )
        self.governor, self.wanted, self._fault = None, Wanted(), ""

    def _failed(self, error: Exception, now_s: float) -> None:
        """Hold the board low until it has been tried again."""
        self._note_fault("watch", error)
        if not self._thermal.enabled:
            return
        self._fault, self._retry_s = f"{type(error).__name__}: {error}", now_s + RETRY_S
        lowest = self.governor.prior.levels[0].caps_khz if self.governor is not None else {}
        self.governor = None
        self.wanted = Wanted(caps_khz={**self.wanted.caps_khz, **lowest}, duty=HELD_LOW_DUTY, concurrency=1)

    # --- what follows ---

    def _carry_out(self, snapshot: Snapshot | None) -> None:
        duty, limit, caps_khz = self._in_force
        clocks = snapshot.clocks if snapshot is not None else ()
        together = caps_together(self.wanted, self._power_limits, clocks, caps_khz)
        both = lower(self.wanted.concurrency, self._power_limits.concurrent)
        self._in_force = (self.wanted.duty, both, together)
        if together != caps_khz:
            self._caps.set(together)
        if self.wanted.duty != duty:
            self._pace(self.wanted.duty)
        if both != limit:
            self._limit(both)

    def _refused(self, clocks: Collection[ClockPolicy]) -> Collection[str]:
        """Policies whose clock cannot be set now."""
        return [clock.name for clock in clocks] if self._caps.busy_s() > STUCK_S else self._refusals

    def _renew(self, now_s: float) -> None:
        if self._refusals and now_s - self._renewed_s >= RENEW_S:
            self._renewed_s = now_s
            self._caps.renew()

    def _caps_told(self, outcome: CapOutcome) -> None:
        """What became of an attempt: on the loop."""
        for name, cap in outcome.policies.items():
            before = self._refusals.pop(name, "")
            if cap.refusal is None:
                continue
            self._refusals[name] = cap.refusal.detail
            if cap.refusal.detail != before:
                decision = Decision(
                    source="watch", kind="refused", what=f"{name} cannot be limited", reason=cap.refusal.detail
                )
                self.decisions.add(decision, level=logging.WARNING)
        self._wake.set()

    def _keep_devices_told(self) -> None:
        if self._devices is None:
            return
        try:
            self._devices.ensure_alive()
        except Exception:
            # Nobody is held low for that: what comes and goes is looked for by the sampler as well.
            log.exception("device events could not be started again")

    # --- what is said ---

    def _note(self, effect: Effect) -> None:
        level = logging.INFO
        if isinstance(effect, Announce):
            level = logging.WARNING if effect.state in ("hot", "blind") else logging.INFO
        elif isinstance(effect, SetCaps) and self.governor is not None and self.governor.state == "cool":
            level = logging.DEBUG  # rest between requests, and back: as often as there are requests
        self.decisions.add(decision_of(effect), level=level)

    def _note_fault(self, source: str, error: Exception) -> None:
        self._faults += 1
        what = "the governor of the supply failed" if source == "power" else "the watch over the board failed"
        log.error("%s", what, exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        self.decisions.add(Decision(source="watch", kind="fault", what=what, reason=reason), level=logging.ERROR)

    def _say_lost(self, lost: bool, now_s: float) -> None:
        if lost != self._lost:
            self._lost = lost
            what = "the board is not seen any more" if lost else "the board is seen again"
            reason = f"nothing has been read for more than {LOST_S:.0f} s" if lost else "its sensors answer"
            self.decisions.add(
                Decision(source="watch", kind="fault" if lost else "state", what=what, reason=reason),
                level=logging.ERROR if lost else logging.INFO,
            )

    def _say_unwritable(self, clocks: Collection[ClockPolicy]) -> None:
        unwritable = frozenset(clock.name for clock in clocks if not clock.writable)
        if unwritable - self._unwritable:
            log.info(
                "clocks cannot be limited for want of permission: the engine will pause instead",
                extra={"fields": {"policies": ", ".join(sorted(unwritable))}},
            )
            self._ask_permission(sorted(unwritable))
        self._unwritable = unwritable

    # --- state ---

    def view(self) -> BoardView:
        return BoardView(board=self.board_state(), thermal=self.thermal_state(), power=self.power_state())

    def board_state(self) -> BoardState:
        return in_brief(
            self._eyes.latest(),
            profile=self._profile.name,
            title=self._profile.title,
            simulated=self._simulated,
            now_s=self._clock(),
            refusals=self._refusals,
            events=self._devices.state if self._devices is not None else EventsState(reason="not asked for"),
        )

    def thermal_state(self) -> ThermalReport:
        _, limit, caps_khz = self._in_force
        return ThermalReport(
            enabled=self._thermal.enabled,
            governor=state_of(self.governor) if self.governor is not None else None,
            limits=self._heat_limits,
            wanted=self.wanted,
            caps_khz=caps_khz,
            concurrency=limit,
            fault=self._fault,
            faults=self._faults,
            decisions=self.decisions.last(),
            decisions_total=self.decisions.totals(),
        )

    def power_state(self) -> PowerState:
        snapshot = self.snapshot
        power, firmware = (snapshot.power, snapshot.firmware) if snapshot else (Power(), Firmware())
        return power_state(self.power, power, firmware, self._clock(), enabled=self._power.enabled)


def _heat_limits(profile: BoardProfile, settings: ThermalSettings) -> HeatLimits:
    return limits_with(profile, target_c=settings.target_c, down_c=settings.down_c, up_c=settings.up_c)


def _rules(settings: PowerSettings) -> PowerRules:
    return PowerRules(
        battery_saving_percent=settings.battery_saving_percent,
        battery_least_percent=settings.battery_least_percent,
        hysteresis_percent=settings.battery_hysteresis_percent,
        calm_s=settings.calm_s,
    )
