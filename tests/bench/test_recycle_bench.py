"""What is read from the times of a lost engine, and when the goal counts as missed."""

import msgspec
import pytest

from bench.recycle import GOAL_MEDIAN_S, WAYS, RecycleResult, Stall, stall_of
from bench.service_process import ServiceFailed
from bench.stream_client import Streamed
from magnitude.supervise.recovery import Recovery

GREEDY, SAMPLED = {"temperature": 0}, {"temperature": 0.8}
RECOVERY = Recovery(
    cause="killed", lost_s=10.1, open_requests=2, engines=1, spare=True, start_s=0.1, load_s=0.3, first_step_s=0.2
)


def stream(*arrivals_s: float, text: str = "same") -> Streamed:
    return Streamed(0.0, arrivals_s, len(arrivals_s), text)


def test_the_parts_of_a_stall_add_up_to_what_the_slowest_client_saw_behind_the_kill() -> None:
    # The second stream's token of 10.05 was on its way at the kill; then it waits longest. A later gap is no part.
    answers = [stream(9.8, 9.9, 10.75), stream(9.85, 9.95, 10.05, 10.9, 12.0)]
    stall = stall_of([GREEDY, SAMPLED], answers, answers, 10.0, RECOVERY)
    assert stall.stall_s == pytest.approx(0.85)
    assert stall.later_s == pytest.approx(1.1)
    assert stall.usual_s == pytest.approx(0.1)
    parts = (stall.detect_s, stall.start_s, stall.load_s, stall.first_step_s, stall.deliver_s)
    assert sum(parts) == pytest.approx(10.9 - 10.0)
    assert (stall.streams, stall.sampled, stall.spare, stall.equal) == (2, 1, True, True)


def test_another_text_is_seen() -> None:
    answer = stream(9.9, 9.95, 10.9)
    assert not stall_of([GREEDY], [answer], [stream(1.0, text="other")], 10.0, RECOVERY).equal


def test_a_loss_that_the_service_does_not_tell_of_gives_no_figure() -> None:
    answer = stream(9.9, 9.95, 10.9)
    for recovery in (None, msgspec.structs.replace(RECOVERY, lost_s=9.0)):
        with pytest.raises(ServiceFailed, match="does not tell"):
            stall_of([GREEDY], [answer], [answer], 10.0, recovery)
    with pytest.raises(ServiceFailed, match="over before"):
        stall_of([GREEDY], [stream(9.0, 9.1)], [answer], 10.0, RECOVERY)


def test_the_goal_is_about_an_engine_that_is_killed_and_each_text_counts() -> None:
    slow = Stall(
        streams=1, sampled=0, spare=True, stall_s=GOAL_MEDIAN_S + 0.1, usual_s=0.02, detect_s=0.0, start_s=0.0,
        load_s=0.6, first_step_s=0.0, deliver_s=0.0, later_s=0.0, equal=True,
    )  # fmt: skip
    assert RecycleResult.of(WAYS[0], [slow]).missed == ["killed, 1 streams: median 0.60 s, goal 0.5"]
    assert RecycleResult.of(WAYS[4], [slow]).missed == []
    wrong = msgspec.structs.replace(slow, equal=False)
    assert RecycleResult.of(WAYS[4], [slow, wrong]).missed == ["hangs, 1 streams: 1 answers had another text"]
