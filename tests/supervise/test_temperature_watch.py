from __future__ import annotations

import threading

from magnitude.supervise.temperature_watch import STALE_S, TemperatureWatch


def test_a_sensor_that_blocks_is_waited_for_by_nobody_and_its_last_word_is_soon_forgotten() -> None:
    read, asked, now_s = threading.Event(), threading.Event(), 100.0
    answers = iter([51.2])

    def sensor() -> float | None:
        found = next(answers, None)
        if found is None:
            asked.set()
            read.wait(60)
        return found

    watch = TemperatureWatch(sensor, every_s=0.0, clock=lambda: now_s)
    assert watch.temp_c is None
    watch.start()
    assert asked.wait(60)
    assert watch.temp_c == 51.2
    now_s += STALE_S + 1
    assert watch.temp_c is None
    watch.stop()  # and it returns
    read.set()
