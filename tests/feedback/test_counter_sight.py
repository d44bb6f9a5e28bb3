"""What the processor's counters say of the engine's work, and what is said where there are none."""

from __future__ import annotations

from magnitude.board.counters import CounterReading
from magnitude.engine.protocol import PROTOCOL_VERSION, Heartbeat, Hello, StepGroup, Steps
from magnitude.feedback.counter_sight import CounterSight
from magnitude.feedback.run_series import RunSeries

WHY = "the processor (or the virtual machine) has no such counter"
NAMES = ("cycles", "instructions", "cache_misses", "branch_misses", "memory_stalls")


class Bench:
    """An engine that has computed for `busy_s`, of which `counted` is what its heartbeats say."""

    def __init__(self, missing: tuple[str, ...] = (), read_bytes_s: float | None = 10e9) -> None:
        self.now_s = 0.0
        self.runs = RunSeries(lambda: self.now_s)
        self.hello = Hello(
            protocol_version=PROTOCOL_VERSION, software_version="1", pid=1, not_counted=dict.fromkeys(missing, WHY)
        )
        self.sight = CounterSight(
            self.runs,
            hello=lambda: self.hello,
            weights=lambda: [("small", 10**7), ("large", 10**8)],
            read_bytes_s=read_bytes_s,
            clock=lambda: self.now_s,
        )

    def work(self, model: str, step_s: float, runs: int = 10, kind: str = "decode") -> None:
        group = StepGroup(
            model=model,
            kind=kind,  # type: ignore[arg-type]
            rows=1,
            tokens=1,
            runs=runs,
            total_s=runs * step_s,
            max_s=step_s,
        )
        self.runs.add(Steps(groups=[group]))

    def beats(self, seconds: int, counted: CounterReading | None, grown: int = 0) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.work("large", 1.0, runs=1)
            if counted is not None and grown:
                counted = CounterReading(cycles=(counted.cycles or 0) + 2 * grown, instructions=counted.cycles)
            self.sight.beat(Heartbeat(steps=1, open_requests=1, busy_s=0.1, rss_bytes=1, counted=counted))


def test_a_processor_that_counts_nothing_is_not_available_and_says_why() -> None:
    bench = Bench(missing=NAMES)
    bench.beats(30, CounterReading())
    state = bench.sight.state()
    assert (state.status, state.rates) == ("not available", None)
    assert state.not_counted == dict.fromkeys(NAMES, WHY)


def test_the_share_of_the_bandwidth_is_estimated_then() -> None:
    bench = Bench(missing=NAMES)
    bench.work("large", 0.0125)
    state = bench.sight.state()
    assert state.roofline["large"].source == "estimated"
    assert state.bandwidth_use == bench.sight.bandwidth_use() == 0.8
    assert state.roofline["small"].source == "not available"


def test_the_model_that_decodes_most_tells_the_share() -> None:
    bench = Bench()
    bench.work("large", 0.0125, runs=2)
    bench.work("small", 0.01, runs=100)
    assert bench.sight.bandwidth_use() == 0.1


def test_it_has_two_digits() -> None:
    bench = Bench()
    bench.work("large", 0.0123)
    assert bench.sight.bandwidth_use() == 0.81


def test_without_steps_or_a_known_bandwidth_nothing_is_said() -> None:
    assert Bench().sight.bandwidth_use() is None
    unknown = Bench(read_bytes_s=None)
    unknown.work("large", 0.01)
    assert unknown.sight.bandwidth_use() is None


def test_prompts_say_nothing_of_decoding() -> None:
    bench = Bench()
    bench.work("large", 0.01, kind="prefill")
    assert bench.sight.bandwidth_use() is None


def test_what_is_counted_becomes_rates_and_outlives_the_engine() -> None:
    bench = Bench(missing=("cache_misses", "branch_misses", "memory_stalls"))
    bench.beats(30, CounterReading(cycles=0, instructions=0), grown=1000)
    state = bench.sight.state()
    assert state.status == "partly counted"
    assert state.rates is not None and state.rates.ipc == 1.0
    bench.sight.engine_gone()
    assert bench.sight.state().rates == state.rates
