"""What replacing an engine took, as it is told."""

from magnitude.cli.ps import recovery_line
from magnitude.supervise.loss import EngineLoss
from magnitude.supervise.recovery import RecoveryClock

KILLED = EngineLoss("SIGKILL", "killed")


def parts(clock: RecoveryClock) -> tuple[float | None, ...]:
    assert clock.last is not None
    return (clock.last.start_s, clock.last.load_s, clock.last.first_step_s)


def test_each_part_runs_from_the_end_of_the_one_before() -> None:
    clock = RecoveryClock()
    clock.lost(KILLED, 2, 100.0)
    assert parts(clock) == (None, None, None)
    clock.started(100.5, spare=True)
    clock.loaded(101.5)
    clock.answered(103.5)
    assert parts(clock) == (0.5, 1.0, 2.0)
    assert clock.last is not None
    assert (clock.last.lost_s, clock.last.total_s, clock.last.spare) == (100.0, 3.5, True)


def test_only_the_first_result_counts_and_only_where_somebody_waited() -> None:
    clock = RecoveryClock()
    for held, first_step_s in ((1, 1.0), (0, None)):
        clock.lost(KILLED, held, 100.0)
        clock.started(100.0, spare=False)
        clock.loaded(100.0)
        clock.answered(101.0)
        clock.answered(107.0)
        assert parts(clock) == (0.0, 0.0, first_step_s)


def test_an_engine_that_is_lost_while_it_starts_is_part_of_the_same_recovery() -> None:
    clock = RecoveryClock()
    clock.lost(KILLED, 1, 100.0)
    clock.started(101.0, spare=True)
    clock.lost(EngineLoss("again", "start"), 0, 102.0)
    clock.started(104.0, spare=False)
    clock.loaded(105.0)
    clock.answered(106.0)
    assert parts(clock) == (4.0, 1.0, 1.0)
    assert clock.last is not None
    assert (clock.last.cause, clock.last.open_requests, clock.last.engines) == ("killed", 1, 2)
    clock.lost(KILLED, 1, 200.0)
    assert clock.last.engines == 0


def test_the_first_start_of_the_service_is_no_recovery() -> None:
    clock = RecoveryClock()
    clock.started(1.0, spare=False)
    clock.loaded(2.0)
    clock.answered(3.0)
    assert clock.last is None


def test_people_are_told_the_parts_that_are_known() -> None:
    clock = RecoveryClock()
    clock.lost(KILLED, 2, 100.0)
    assert clock.last is not None
    assert recovery_line(clock.last, "SIGKILL") == "last engine lost: SIGKILL; being replaced, 2 requests went on"
    clock.started(100.0, spare=True)
    clock.loaded(100.3)
    clock.answered(100.4)
    assert "replaced in 0.40 s (start 0.00, load 0.30, first step 0.10)" in recovery_line(clock.last, "SIGKILL")
