"""The real service on a simulated board, in real time.

The board warms up by what the engine does, its clocks and sensors are a tree of files that the service reads and
writes instead of this machine's, and the engine is paced: it computes for that share of the time which the simulated
clock leaves of the speed at the highest one. At full clock the engine is as fast as this machine makes it; what is
simulated is how much slower it gets, and heat.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from magnitude.board.profile import BoardProfile
from magnitude.board.roots import HostRoots
from magnitude.board.sim.board import SimulatedBoard, rates
from magnitude.board.sim.told import SimulatedState
from magnitude.board.sim.tree import BoardTree
from magnitude.board.workload import ModelCost, Work
from magnitude.models.description import ModelDescription
from magnitude.schedule.pacing import FULL, Shares
from magnitude.schedule.phase_meter import PhaseTimes, work_by_phase
from magnitude.schedule.present_work import PresentWork

log = logging.getLogger("magnitude.simulate")

# As often as a sensor is looked at (`board.sampler`): what is written in between nobody sees.
PERIOD_S = 0.1
# After a longer break, such as a stopped process, the board goes on from where it was: nobody knows what it did.
LONGEST_STEP_S = 2.0
# 4-bit weights in blocks of 32 with a 16-bit scale each: the graphs that an import makes.
BITS_PER_WEIGHT = 4.5
# A board at 1 % of its speed is as good as dead, and still one that answers.
LEAST_SHARE = 0.01
# The source of its shares in `schedule.pacing`.
SOURCE = "board"


class SimulateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a board is simulated beside the service. `start_c`: its chip is that warm at the start (None: as an idle
    board's). With `speed` heat passes that much faster than the service's own time."""

    board: str
    ambient_c: float = 25.0
    start_c: float | None = None
    speed: float = 1.0


class Meter(Protocol):
    """What the engine is at, and how long it has been at what (`schedule.phase_meter.WorkMeter`)."""

    def present(self) -> PresentWork: ...

    def times(self) -> PhaseTimes: ...


class LiveBoard:
    """One simulated board, with its files below `folder`, which is emptied. `advance` may be called from any thread,
    by one at a time."""

    def __init__(self, profile: BoardProfile, options: SimulateOptions, folder: Path) -> None:
        self.profile = profile
        self.options = options
        shutil.rmtree(folder, ignore_errors=True)
        self._board = SimulatedBoard(profile, ambient_c=options.ambient_c)
        if options.start_c is not None:
            self._board.warm(options.start_c)
        self._tree = BoardTree(folder / "tree", profile, self._board.snapshot())
        self._folder = folder
        self._shares = FULL
        self._lock = threading.Lock()  # a step may be under way in its thread when the service ends
        self._closed = False

    @property
    def roots(self) -> HostRoots:
        """Sensors and clocks are the simulated board's; processes, memory and control groups are this machine's."""
        return HostRoots(sys=self._tree.roots.sys)

    @property
    def run_folder(self) -> Path:
        """Where to note which of its clocks were capped: this board's limits are not to be put back on a real one."""
        folder = self._folder / "run"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def announce(self) -> None:
        fields = {"title": self.profile.title, **msgspec.to_builtins(self.options), "files": str(self._folder)}
        log.warning(
            "THE BOARD IS SIMULATED: heat, clocks and speed are computed, not measured", extra={"fields": fields}
        )

    def advance(
        self,
        dt_s: float,
        work: PresentWork,
        cost: ModelCost | None,
        duty: Shares = FULL,
        parts: Sequence[tuple[float, PresentWork]] = (),
    ) -> Shares:
        """Let `dt_s` seconds of the service's time pass, of which others let the engine do `duty`; the shares of the
        time for which it may compute from now on. It did `work` all the time, or `parts` in proportion to their
        seconds, one after the other, and `work` at their end."""
        whole_s = sum(seconds for seconds, _ in parts) or 1.0
        with self._lock:
            if self._closed:
                return self._shares
            for policy, khz in self._tree.read_back().items():
                self._board.set_cap(policy, khz)
            for seconds, done in parts or [(1.0, work)]:
                passed_s = dt_s * seconds / whole_s * self.options.speed
                self._board.advance(passed_s, _work_of(self.profile, done, cost, duty))
            self._tree.show(self._board.snapshot())
            self._shares = shares_at(self.profile, self._clocks(), cost, work.decoding)
            return self._shares

    async def run(
        self,
        meter: Meter,
        cost: Callable[[PresentWork], ModelCost | None],
        duty: Callable[[], Shares],
        pace: Callable[[Shares], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the board going until cancelled. The callables are called on the event loop, `advance` beside it."""
        last_s, counted = clock(), meter.times()
        while True:
            await asyncio.sleep(PERIOD_S)
            now_s = clock()
            step_s, last_s = min(now_s - last_s, LONGEST_STEP_S), now_s
            work, before, counted = meter.present(), counted, meter.times()
            parts = work_by_phase(work, counted.since(before))
            pace(await asyncio.to_thread(self.advance, step_s, work, cost(work), duty(), parts))

    def state(self) -> SimulatedState:
        board, options = self._board, self.options
        return SimulatedState(
            board=self.profile.name,
            title=self.profile.title,
            ambient_c=board.ambient_c,
            speed=options.speed,
            passed_s=board.now_s,
            temp_c=board.temp_c,
            chip_w=board.chip_w,
            board_w=board.board_w,
            khz={policy: round(khz) for policy, khz in board.effective_khz.items()},
            prefill_share=self._shares.prefill,
            decode_share=self._shares.decode,
            folder=str(self._folder),
        )

    def close(self) -> None:
        """The board stands still from now on; its files stay."""
        with self._lock:
            self._closed = True
            self._tree.close()

    def _clocks(self) -> dict[str, float]:
        """Those that work runs at: the limit of each, or what the firmware leaves of it. A clock that is low because
        nothing ran, or still on its way up, is not meant: that is over before the engine could be told."""
        runs = self._board.effective_khz
        khz: dict[str, float] = {}
        for clock in self._board.snapshot().clocks:
            throttled = clock.cur_khz is None or clock.cap_khz is None or runs[clock.name] < clock.cur_khz
            khz[clock.name] = runs[clock.name] if throttled or clock.cap_khz is None else float(clock.cap_khz)
        return khz


def shares_at(
    profile: BoardProfile, khz_by_policy: Mapping[str, float], cost: ModelCost | None, rows: int = 1
) -> Shares:
    """What these clocks leave of the speed at the highest ones, by phase. Pure."""
    if cost is None:
        return FULL

    def both(khz: Mapping[str, float]) -> tuple[float, float]:
        prefill = rates(profile, khz, profile.prefill_threads, cost)
        decode = rates(profile, khz, profile.decode_threads, cost, max(1, rows))
        return prefill.prefill_tokens_s, decode.decode_tokens_s

    prefill, decode = (
        max(LEAST_SHARE, min(1.0, now / full)) for now, full in zip(both(khz_by_policy), both({}), strict=True)
    )
    return Shares(prefill=prefill, decode=decode)


def cost_of(model: ModelDescription, past_tokens: int = 0) -> ModelCost:
    """What one token of a model costs, by the size of its weights."""
    decoder = model.decoder
    return ModelCost(
        weight_bytes=model.weight_bytes,
        macs_per_token=model.weight_bytes * 8 / BITS_PER_WEIGHT,
        kv_bytes_per_token=decoder.kv_bytes_per_token() if decoder is not None else 0,
        past_tokens=past_tokens,
    )


def _work_of(profile: BoardProfile, work: PresentWork, cost: ModelCost | None, duty: Shares) -> Work:
    """The same work on the simulated board, with as many threads as suit that one: this machine's are not its."""
    if work.phase == "idle" or cost is None:
        return Work(phase="idle", threads=profile.prefill_threads)
    decodes = work.phase == "decode"
    return Work(
        phase=work.phase,
        threads=profile.decode_threads if decodes else profile.prefill_threads,
        rows=max(1, work.decoding),
        duty=duty.decode if decodes else duty.prefill,
        model=cost,
    )
