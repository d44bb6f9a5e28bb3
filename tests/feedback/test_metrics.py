from __future__ import annotations

from magnitude.engine.protocol import PoolUse
from magnitude.feedback.metrics import Metrics


def test_memory_and_load_are_asked_for_when_the_numbers_are_read() -> None:
    metrics, rss = Metrics(), [1.0]
    metrics.watch_memory(service_rss_bytes=lambda: rss[0], engine_rss_bytes=lambda: 2.0, kv_bytes=lambda: 3.0)
    metrics.watch_load(running=lambda: 4.0, queued=lambda: 5.0, engine_restarts=lambda: 6.0)
    rss[0] = 10.0
    text = metrics.render().decode()
    for line in (
        'magnitude_resident_bytes{process="service"} 10.0',
        'magnitude_resident_bytes{process="engine"} 2.0',
        "magnitude_kv_bytes 3.0",
        "magnitude_running_requests 4.0",
        "magnitude_queued_requests 5.0",
        "magnitude_engine_restarts 6.0",
    ):
        assert line in text.splitlines()


def test_what_encoder_runs_leave_behind_is_told_as_it_is_with_its_peak_and_mean() -> None:
    metrics = Metrics()
    use = PoolUse(held_bytes=2, peak_bytes=40, mean_bytes=4)
    metrics.watch_memory(
        service_rss_bytes=lambda: 1.0, engine_rss_bytes=lambda: 2.0, kv_bytes=lambda: 3.0, run_pool=lambda: use
    )
    text = metrics.render().decode().splitlines()
    for figure, value in (("held", 2.0), ("peak", 40.0), ("mean", 4.0)):
        assert f'magnitude_run_pool_bytes{{figure="{figure}"}} {value}' in text


def test_two_sets_of_metrics_do_not_meet() -> None:
    first, second = Metrics(), Metrics()
    first.requests.labels("/x", "200").inc()
    assert 'route="/x"' not in second.render().decode()
