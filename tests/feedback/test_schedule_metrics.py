from __future__ import annotations

import pytest

from magnitude.feedback.metrics import Metrics
from magnitude.schedule.figures import ScheduleFigures
from schedule_samples import BUSY


@pytest.fixture
def lines() -> list[str]:
    metrics = Metrics()
    metrics.watch_schedule(lambda: BUSY)
    return metrics.render().decode().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        'magnitude_slots{model="tiny-chat",state="running"} 3.0',
        'magnitude_slots{model="tiny-chat",state="idle"} 7.0',
        'magnitude_slots{model="tiny-chat",state="free"} 5.0',
        'magnitude_prefix_hits_total{model="tiny-chat"} 120.0',
        'magnitude_prefix_misses_total{model="tiny-chat",reason="differs"} 9.0',
        'magnitude_prefix_misses_total{model="tiny-chat",reason="evicted"} 5.0',
        'magnitude_reused_tokens_total{model="tiny-chat",source="slot"} 39200.0',
        'magnitude_reused_tokens_total{model="tiny-chat",source="disk"} 800.0',
        'magnitude_prefix_evictions_total{model="tiny-chat"} 6.0',
        'magnitude_saved_conversations{model="tiny-chat"} 4.0',
        'magnitude_compute_slots{model="tiny-chat"} 4.0',
        'magnitude_generations{model="tiny-chat",state="paused"} 1.0',
        'magnitude_waiting_requests{model="tiny-chat",priority="background"} 2.0',
        'magnitude_reserved_requests{model="tiny-chat"} 2.0',
        'magnitude_preemptions_total{model="tiny-chat"} 8.0',
        'magnitude_conversations{model="tiny-chat"} 9.0',
        'magnitude_conversation_capacity{model="tiny-chat"} 16.0',
        'magnitude_conversation_limit{model="tiny-chat"} 11.2',
        'magnitude_compute_segment_seconds{model="tiny-chat",task="chat"} 1.25',
        'magnitude_wait_segment_seconds{model="tiny-chat",task="chat"} 3.75',
        'magnitude_encoder_runs{state="waiting"} 3.0',
    ],
)
def test_the_schedules_figures_are_series_by_model(lines: list[str], line: str) -> None:
    assert line in lines


def test_figures_are_asked_for_anew_at_each_reading_and_once() -> None:
    asked = []

    def figures() -> ScheduleFigures:
        asked.append(1)
        return BUSY if len(asked) > 1 else ScheduleFigures()

    metrics = Metrics()
    metrics.watch_schedule(figures)
    assert "tiny-chat" not in metrics.render().decode()
    assert "tiny-chat" in metrics.render().decode()
    assert len(asked) == 2


def test_a_wait_that_nobody_measured_is_no_series(lines: list[str]) -> None:
    assert not [line for line in lines if line.startswith("magnitude_wait_segment_seconds") and 'task="tool"' in line]
    assert 'magnitude_compute_segment_seconds{model="tiny-chat",task="tool"} 0.5' in lines
