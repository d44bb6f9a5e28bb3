"""When the figures of a sensor are not believed."""

from __future__ import annotations

import random

import pytest

from magnitude.governor.stuck_sensor import MOVED_LOOKS, STUCK_C, StuckSensor

HEED_C = 79.5


def warmed(sensor: StuckSensor, rises_c: list[float], share: float, *, noise_c: float, seed: int = 1) -> list[bool]:
    """A look a second at a chip of 40 °C that warms by `share` of what is believed."""
    at_random = random.Random(seed)
    return [
        sensor.look(40.0 + share * rise_c + at_random.uniform(-noise_c, noise_c), rise_c, float(second))
        for second, rise_c in enumerate(rises_c)
    ]


IDLE_THEN_WORK = [0.0] * 20 + [min(30.0, 1.5 * second) for second in range(60)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise_c", [0.2, 1.0, 2.0])
def test_noise_around_a_figure_that_does_not_move_while_power_is_put_in_is_no_movement(
    noise_c: float, seed: int
) -> None:
    verdicts = warmed(StuckSensor(HEED_C), IDLE_THEN_WORK, 0.0, noise_c=noise_c, seed=seed)
    assert not any(verdicts[:20])
    # At the latest once the chip must have warmed by more than so much noise can hide.
    latest = IDLE_THEN_WORK.index(18.0)
    assert all(verdicts[latest:])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.65, 1.0, 1.5])
def test_a_noisy_sensor_of_a_chip_that_warms_is_believed_on_boards_that_are_better_or_worse_than_told(
    share: float, seed: int
) -> None:
    assert not any(warmed(StuckSensor(HEED_C), IDLE_THEN_WORK, share, noise_c=1.5, seed=seed))


def test_a_single_reading_that_is_far_off_is_no_movement() -> None:
    sensor = StuckSensor(HEED_C)
    for second, rise_c in enumerate(IDLE_THEN_WORK):
        far_off_c = -60.0 * (second % 7 == 3)
        stuck = sensor.look(40.0 + 0.1 * (second % 3) + far_off_c, rise_c, float(second))
    assert stuck


@pytest.mark.parametrize("looks_ahead", [0, 1])
def test_a_reading_that_shows_the_work_since_the_last_look_is_as_good_as_one_that_does_not(looks_ahead: int) -> None:
    sensor = StuckSensor(HEED_C)
    steep_c = [4 * rise_c for rise_c in IDLE_THEN_WORK]
    for second, rise_c in enumerate(steep_c[:-1]):
        read_c = 40.0 + 0.7 * steep_c[second + looks_ahead] + 0.01 * (second % 2)
        assert not sensor.look(read_c, rise_c, float(second))


def test_a_stuck_sensor_is_believed_again_once_it_has_moved_for_some_looks() -> None:
    sensor = StuckSensor(HEED_C)
    warmed(sensor, IDLE_THEN_WORK, 0.0, noise_c=0.5)
    now_s = float(len(IDLE_THEN_WORK))
    verdicts = [sensor.look(55.0 + 0.1 * look, 30.0, now_s + look) for look in range(MOVED_LOOKS + 20)]
    assert verdicts == [True] * (MOVED_LOOKS - 1) + [False] * 21


def test_work_that_ends_does_not_make_a_stuck_sensor_believable() -> None:
    sensor = StuckSensor(HEED_C)
    warmed(sensor, IDLE_THEN_WORK, 0.0, noise_c=0.5)
    now_s = float(len(IDLE_THEN_WORK))
    assert all(sensor.look(40.0 + 0.1 * (look % 3), 30.0 * 0.8**look, now_s + look) for look in range(200))


def test_readings_that_are_dangerous_are_heeded_though_they_hardly_move() -> None:
    sensor = StuckSensor(41.0)
    for second, rise_c in enumerate(IDLE_THEN_WORK):
        stuck = sensor.look(41.0 + 0.1 * (second % 3), rise_c, float(second))
        assert not stuck


def test_the_very_same_figure_is_found_out_sooner_also_while_the_chip_must_cool() -> None:
    for way in (1.0, -1.0):
        sensor = StuckSensor(HEED_C)
        verdicts = [sensor.look(40.0, 20.0 + way * 0.5 * second, float(second)) for second in range(10)]
        assert verdicts.index(True) == STUCK_C / 0.5 + 1
