"""The simulated board: work goes in, time passes, and a snapshot says what a sampler would have read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from magnitude.board.power_use import cores_w, leakage_w
from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import policy_name
from magnitude.board.sim.chip import Chip
from magnitude.board.sim.clocks import Clocks
from magnitude.board.sim.firmware import LOOK_S, throttle_of
from magnitude.board.snapshot import ClockPolicy, Fan, Snapshot, TempSensor
from magnitude.board.workload import (
    Load,
    ModelCost,
    Pool,
    Progress,
    Rates,
    Work,
    cores_used,
    in_turn,
    load_of,
    placed,
)

# Longest step of the simulation. Heat is solved exactly within a step; what a step takes as constant is leakage,
# which changes by a thousandth when the chip gets 0.05 °C warmer.
STEP_S = 1.0
# Within this distance of a trip the throttle's own looks set the step.
NEAR_TRIP_C = 4.0


class _Point(msgspec.Struct, frozen=True, gc=False):
    """Work at certain clocks."""

    load: Load
    cores_w: float
    memory_w: float


class SimulatedBoard:
    """Physics only: no files, no clock, no chance. `ambient_c` may be changed while it runs."""

    def __init__(self, profile: BoardProfile, *, ambient_c: float = 25.0) -> None:
        self.profile = profile
        self.now_s = 0.0
        # Of the last step: what the chip took, what the whole board took.
        self.chip_w = 0.0
        self.board_w = 0.0
        self._policies = [policy_name(profile, index) for index in range(len(profile.clusters))]
        self._clocks = Clocks(profile)
        self._throttle = throttle_of(profile)
        self._chip = Chip(profile.thermal, profile.fan, ambient_c)
        self._points: dict[tuple[object, ...], _Point] = {}
        self._cores: dict[Pool, tuple[int, ...]] = {}
        self._settle_idle()

    @property
    def temp_c(self) -> float:
        """The chip's temperature."""
        return self._chip.temp_c

    @property
    def ambient_c(self) -> float:
        return self._chip.ambient_c

    @ambient_c.setter
    def ambient_c(self, value: float) -> None:
        self._chip.ambient_c = value

    @property
    def asked_khz(self) -> dict[str, int]:
        """The clocks that the kernel's governor asks for, by policy."""
        return dict(zip(self._policies, self._clocks.asked_khz, strict=True))

    @property
    def effective_khz(self) -> dict[str, float]:
        """The clocks that really run, by policy: the kernel's ask, or what firmware or cooling leave of it."""
        return dict(zip(self._policies, self._effective(), strict=True))

    def warm(self, temp_c: float) -> None:
        """Start from this chip temperature instead of an idle board's."""
        self._chip.warm(temp_c)

    def set_cap(self, policy: str, khz: int | None) -> None:
        """Cap a policy's clock, as a write to `scaling_max_freq` does; None takes the cap away.

        Raises `KeyError` for a policy that the board does not have.
        """
        if policy not in self._policies:
            raise KeyError(policy)
        self._clocks.set_cap(self._policies.index(policy), khz)

    def advance(self, dt_s: float, work: Work) -> Progress:
        """Let `dt_s` seconds pass with this work. Raises `ValueError` for work without a model."""
        if work.phase != "idle" and work.model is None:
            raise ValueError(f"{work.phase} needs a model")
        busy = work.phase != "idle" and work.duty > 0
        duty = min(1.0, work.duty) if busy else 0.0
        self._clocks.want(tuple(busy and count > 0 for count in self._taken(work)))
        prefill = decode = energy_j = chip_j = 0.0
        steps = 0.0
        peak_c = self._chip.temp_c
        left_s = dt_s
        while left_s > 1e-9:
            step_s = self._step(left_s)
            point = self._point(work) if busy else None
            chip_w, board_w = self._watts(point, duty)
            if point is not None:
                prefill += point.load.prefill_tokens_s * duty * step_s
                decode += point.load.decode_tokens_s * duty * step_s
                steps += duty * step_s / point.load.inter_token_s if point.load.inter_token_s else 0.0
            chip_j += chip_w * step_s
            energy_j += board_w * step_s
            self._chip.heat(chip_w, step_s)
            peak_c = max(peak_c, self._chip.temp_c)
            self._clocks.advance(step_s)
            self._throttle.look(self._chip.temp_c, step_s)
            self.chip_w, self.board_w = chip_w, board_w
            left_s -= step_s
        self.now_s += dt_s
        return Progress(
            prefill_tokens=prefill,
            decode_tokens=decode,
            energy_j=energy_j,
            chip_energy_j=chip_j,
            inter_token_s=dt_s / steps if steps else None,
            peak_c=peak_c,
        )

    def load_now(self, work: Work) -> Load:
        """What `work` comes to at the clocks of this moment, at full duty."""
        return self._point(work).load

    def snapshot(self) -> Snapshot:
        """What a sampler would read now. Clocks are the kernel's ask: throttling by firmware does not show in
        them."""
        profile, temp_c = self.profile, round(self._chip.temp_c, 2)
        cpus = tuple(sorted(cpu for cluster in profile.clusters for cpu in cluster.cpus))
        return Snapshot(
            at_s=self.now_s,
            board=profile.name,
            online=cpus,
            usable_threads=len(cpus),
            temps=tuple(
                TempSensor(name=zone.names[0], kind=zone.kind, source="simulated", temp_c=temp_c, age_s=0.0)
                for zone in profile.zones
            ),
            hottest_c=temp_c,
            fused_c=temp_c,
            clocks=tuple(self._policy(index) for index in range(len(profile.clusters))),
            firmware=self._throttle.told(),
            fans=(Fan(name="pwm-fan", state=self._chip.fan_step, max_state=len(profile.fan)),) if profile.fan else (),
        )

    def _policy(self, index: int) -> ClockPolicy:
        cluster = self.profile.clusters[index]
        opps = tuple(opp.khz for opp in cluster.opps)
        cap, current = self._clocks.cap_in_force(index), self._clocks.asked_khz[index]
        cooling = self._throttle.cooling_caps()
        if cooling is not None:
            cap, current = min(cap, int(cooling[index])), min(current, int(cooling[index]))
        return ClockPolicy(
            name=self._policies[index],
            cpus=tuple(sorted(cluster.cpus)),
            opps_khz=opps,
            min_khz=opps[0],
            max_khz=opps[-1],
            cap_khz=cap,
            cur_khz=current,
            governor=self.profile.clock_governor,
            writable=True,
        )

    def _step(self, left_s: float) -> float:
        """How long nothing but heat changes."""
        step_s = min(left_s, STEP_S)
        ramp_s = self._clocks.until_settled()
        if ramp_s is not None:
            step_s = min(step_s, max(ramp_s, 1e-3))
        if self._chip.temp_c > self.profile.trips.soft_c - NEAR_TRIP_C:
            step_s = min(step_s, LOOK_S)
        return step_s

    def _placed(self, pool: Pool) -> tuple[int, ...]:
        cores = self._cores.get(pool)
        if cores is None:
            cores = self._cores[pool] = placed(self.profile, pool.threads, pool.cpus)
        return cores

    def _taken(self, work: Work) -> list[int]:
        """Cores of each cluster that take part at any moment of the work."""
        pools = [Pool(work.threads, work.cpus)] + ([work.answers] if work.answers and work.phase == "mixed" else [])
        return [max(counts) for counts in zip(*map(self._placed, pools), strict=True)]

    def _effective(self) -> list[float]:
        return [
            min(asked, limit) for asked, limit in zip(self._clocks.asked_khz, self._throttle.limits_khz, strict=True)
        ]

    def _point(self, work: Work) -> _Point:
        effective = self._effective()
        key = (
            work.phase,
            work.threads,
            work.cpus,
            work.answers,
            work.rows,
            work.piece_tokens,
            work.model,
            *effective,
        )
        point = self._points.get(key)
        if point is None:
            if len(self._points) > 10_000:
                self._points.clear()
            point = self._points[key] = self._point_at(effective, work)
        return point

    def _point_at(self, khz: list[float], work: Work) -> _Point:
        used = cores_used(self.profile, self._placed(Pool(work.threads, work.cpus)), khz)
        if work.phase == "mixed" and work.answers is not None:
            prompts = load_of(self.profile, used, msgspec.structs.replace(work, phase="prefill"))
            answering = cores_used(self.profile, self._placed(work.answers), khz)
            answers = load_of(self.profile, answering, msgspec.structs.replace(work, phase="decode"))
            load = in_turn(answers, prompts, work)
            prompt_share = load.prefill_tokens_s / prompts.prefill_tokens_s
            watts = prompt_share * cores_w(self.profile, used, prompts)
            watts += (1.0 - prompt_share) * cores_w(self.profile, answering, answers)
        else:
            load = load_of(self.profile, used, work)
            watts = cores_w(self.profile, used, load)
        return _Point(load, watts, load.memory_gb_s * self.profile.memory.watts_per_gb_s)

    def _watts(self, point: _Point | None, duty: float) -> tuple[float, float]:
        """Power of the chip, and of the whole board, in this step."""
        power = self.profile.power
        chip_w = power.chip_idle_w + leakage_w(power, self._chip.temp_c)
        memory_w = 0.0
        if point is not None:
            chip_w += duty * point.cores_w
            memory_w = duty * point.memory_w
        return chip_w, chip_w + memory_w + power.board_idle_w

    def _settle_idle(self) -> None:
        """Start as a board that has been idle for long. Leakage and temperature hold each other up: some rounds
        settle them."""
        for _ in range(20):
            self._chip.settle(self._watts(None, 0.0)[0])
        self.chip_w, self.board_w = self._watts(None, 0.0)


def rates(
    profile: BoardProfile, khz_by_policy: Mapping[str, float], threads: int, model: ModelCost, rows: int = 1
) -> Rates:
    """Tokens a second at these clocks (policies that are not named run at their highest)."""
    khz = [
        float(khz_by_policy.get(policy_name(profile, index), cluster.opps[-1].khz))
        for index, cluster in enumerate(profile.clusters)
    ]
    used = cores_used(profile, placed(profile, threads), khz)
    return Rates(
        prefill_tokens_s=load_of(profile, used, Work(phase="prefill", threads=threads, model=model)).prefill_tokens_s,
        decode_tokens_s=load_of(
            profile, used, Work(phase="decode", threads=threads, rows=rows, model=model)
        ).decode_tokens_s,
    )
