from __future__ import annotations

import pytest

from magnitude.feedback.metrics import Metrics
from magnitude.governor.memory_state import MemoryState

SHORT = MemoryState(
    step="unload_idle",
    limit_bytes=2_000_000_000,
    pressure_bytes=1_700_000_000,
    file_bytes=50_000_000,
    available_bytes=300_000_000,
    engine_own_bytes=900_000_000,
    stall_some_percent=12.5,
    stall_full_percent=4.0,
    high_events=50000,
    oom_kills=1,
    steps={"trim": 3, "unload_idle": 1},
)


def rendered(state: MemoryState) -> list[str]:
    metrics = Metrics()
    metrics.watch_memory_steps(lambda: state)
    return metrics.render().decode().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "magnitude_memory_step 3.0",
        'magnitude_memory_steps_total{step="trim"} 3.0',
        'magnitude_memory_steps_total{step="restart"} 0.0',
        "magnitude_memory_limit_bytes 2e+09",
        "magnitude_memory_pressure_bytes 1.7e+09",
        "magnitude_memory_file_bytes 5e+07",
        "magnitude_memory_available_bytes 3e+08",
        "magnitude_memory_engine_bytes 9e+08",
        'magnitude_memory_stall_percent{kind="full"} 4.0',
        'magnitude_memory_events_total{event="high"} 50000.0',
    ],
)
def test_memory_and_its_steps_are_series(line: str) -> None:
    assert line in rendered(SHORT)


def test_what_the_kernel_does_not_tell_is_no_series() -> None:
    names = {line.split("{")[0].split()[0] for line in rendered(MemoryState()) if not line.startswith("#")}
    assert not names & {
        "magnitude_memory_limit_bytes",
        "magnitude_memory_stall_percent",
        "magnitude_memory_events_total",
    }
