from __future__ import annotations

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


def test_two_sets_of_metrics_do_not_meet() -> None:
    first, second = Metrics(), Metrics()
    first.requests.labels("/x", "200").inc()
    assert 'route="/x"' not in second.render().decode()
