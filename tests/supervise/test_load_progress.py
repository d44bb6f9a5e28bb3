from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.supervise.load_progress import ENGINES_COUNTED, STEP_BYTES, LoadProgress, LoadSample

MB = 1 << 20


def loading(pid: int = 1, *, read_mb: float = 0, rss_mb: float = 0, steps: int = 0) -> LoadSample:
    return LoadSample(pid, "loading", read_bytes=int(read_mb * MB), rss_bytes=int(rss_mb * MB), steps=steps)


def test_reading_growing_working_and_a_new_phase_are_progress() -> None:
    progress = LoadProgress()
    assert progress.advanced(LoadSample(1, "starting"))
    assert progress.advanced(loading())
    assert progress.advanced(loading(read_mb=20))
    assert progress.advanced(loading(read_mb=20, rss_mb=60))
    assert progress.advanced(loading(read_mb=20, rss_mb=60, steps=1))


def test_a_load_that_stands_still_is_none_however_long_it_takes() -> None:
    progress = LoadProgress()
    progress.advanced(loading(read_mb=90, rss_mb=200, steps=3))
    assert not any(progress.advanced(loading(read_mb=90, rss_mb=200, steps=3)) for _ in range(1000))


def test_memory_that_goes_up_and_down_is_none() -> None:
    progress = LoadProgress()
    progress.advanced(loading(rss_mb=100))
    progress.advanced(loading(rss_mb=200))
    assert not any(progress.advanced(loading(rss_mb=100 + 100 * (turn % 2))) for turn in range(100))


def test_a_trickle_adds_up() -> None:
    progress = LoadProgress()
    progress.advanced(loading())
    said = [progress.advanced(loading(read_mb=tick * 0.25)) for tick in range(1, 41)]
    assert sum(said) == 10


def test_without_an_engine_nothing_gets_on() -> None:
    assert not LoadProgress().advanced(LoadSample(None, "backing_off"))


def test_a_crash_loop_runs_into_the_timeout() -> None:
    progress = LoadProgress()
    said = [progress.advanced(loading(pid, read_mb=read)) for pid in range(1, 20) for read in (0, 50, 100)]
    assert sum(said) == 3 * ENGINES_COUNTED
    assert not any(said[3 * ENGINES_COUNTED :])


SAMPLES = st.builds(
    LoadSample,
    st.none() | st.integers(1, 5),
    st.sampled_from(["starting", "loading"]),
    st.integers(0, 40 * MB),
    st.integers(0, 40 * MB),
    st.integers(0, 5),
)


@given(st.lists(SAMPLES, max_size=300))
def test_progress_cannot_be_claimed_for_ever(samples: list[LoadSample]) -> None:
    progress = LoadProgress()
    said = sum(progress.advanced(sample) for sample in samples)
    highs = 2 * (40 * MB // STEP_BYTES) + 5
    assert said <= ENGINES_COUNTED * (1 + highs + 1)  # its first sight, each new high, the other phase
