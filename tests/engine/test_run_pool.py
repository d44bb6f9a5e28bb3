from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.run_pool import PoolForecast, RunPool

MB = 1 << 20


class Heap:
    """A process whose heap keeps what runs freed, as glibc does: never less than its highest until it is trimmed."""

    def __init__(self) -> None:
        self.base = 100 * MB
        self.held = 0
        self.trims = 0
        self.pool = RunPool(lambda: self.base + self.held, self._trim)

    def run(self, tokens: int, need: int) -> None:
        self.held = max(self.held, need)
        self.pool.ran(tokens)

    def _trim(self) -> None:
        self.trims += 1
        self.held = 0


def test_one_large_run_among_small_ones_gives_its_memory_back():
    heap = Heap()
    for _ in range(5):
        heap.run(16, 2 * MB)
    heap.run(512, 40 * MB)
    for _ in range(20):
        heap.run(16, 2 * MB)
    assert heap.held == 2 * MB
    assert heap.trims == 1


def test_large_runs_that_go_on_keep_their_memory():
    heap = Heap()
    for _ in range(50):
        heap.run(512, 40 * MB)
        heap.run(16, 2 * MB)
    assert heap.trims == 0


def test_memory_that_others_took_is_no_part_of_the_pool_for_long():
    heap = Heap()
    heap.run(16, 2 * MB)
    heap.base += 200 * MB  # another model was loaded
    for _ in range(40):
        heap.run(16, 2 * MB)
    assert heap.trims <= 2
    assert heap.pool.use.held_bytes <= 2 * MB
    heap.base -= 250 * MB  # unloaded, and more with it
    heap.run(16, 2 * MB)
    assert heap.pool.use.held_bytes <= 2 * MB


def test_peak_and_mean_tell_a_single_large_run_from_steady_ones():
    steady, single = Heap(), Heap()
    for n in range(40):
        steady.run(512, 40 * MB)
        single.run(512 if n == 20 else 16, 40 * MB if n == 20 else 2 * MB)
    assert steady.pool.use.peak_bytes == single.pool.use.peak_bytes == 40 * MB
    assert steady.pool.use.peak_to_mean == 1.0
    assert single.pool.use.peak_to_mean > 3
    assert PoolForecast().use.peak_to_mean == 1.0


@given(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 500 * MB)), max_size=60))
def test_what_is_needed_is_never_predicted_above_what_was_held(runs: list[tuple[int, int]]):
    forecast = PoolForecast()
    for tokens, held in runs:
        forecast.ran(tokens, held)
        use = forecast.use
        assert 0 <= use.needed_bytes <= use.peak_bytes
        assert use.mean_bytes <= use.peak_bytes
