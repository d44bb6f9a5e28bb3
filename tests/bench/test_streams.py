"""What streams of server-sent events say, and the rate of several of them."""

import json

import pytest

from bench.entering import EnteringRound, entering_result
from bench.service_process import ServiceFailed
from bench.stream_client import Streamed, joint_rate, read_stream
from bench.streams import rates_of
from bench.streams_report import goal_lines


def event(**chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def text(piece: str) -> bytes:
    return event(choices=[{"text": piece}])


def usage(tokens: int) -> bytes:
    return event(choices=[], usage={"completion_tokens": tokens})


def steady(first_s: float, tokens: int, step_s: float = 0.1) -> Streamed:
    return Streamed(0.0, tuple(first_s + step_s * at for at in range(tokens)), tokens)


def test_a_piece_comes_when_its_last_byte_does() -> None:
    whole = text("one")
    reads = [(1.0, whole[:9]), (2.0, whole[9:]), (3.0, text("") + b": waiting\n\n"), (4.0, text("two") + usage(2))]
    answer = read_stream(0.5, reads)
    assert (answer.arrivals_s, answer.tokens) == ((2.0, 4.0), 2)
    assert answer.gaps_ms(0.0, 5.0) == [2000.0]
    assert answer.gaps_ms(3.0, 5.0) == []


def test_a_stream_that_was_hung_up_on_counts_its_pieces() -> None:
    reads = [(1.0, text("one")), (2.0, text("two") + b"data: {bro")]
    assert read_stream(0.0, reads, whole=False).tokens == 2
    with pytest.raises(ServiceFailed, match="usage"):
        read_stream(0.0, reads)


def test_an_error_in_a_stream_is_told() -> None:
    with pytest.raises(ServiceFailed, match="broken"):
        read_stream(0.0, [(1.0, text("one") + event(error={"message": "broken"}))])


def test_streams_count_only_while_all_of_them_decode() -> None:
    # Ten tokens a second each; the first has five tokens before the second begins, which do not count.
    assert joint_rate([steady(0.0, 50), steady(0.5, 60)], least_tokens=40) == pytest.approx(20.0, rel=0.05)


def test_tokens_without_text_of_their_own_count_as_well() -> None:
    halved = Streamed(0.0, steady(0.0, 50, 0.2).arrivals_s, 100)
    assert joint_rate([halved], least_tokens=40) == pytest.approx(10.0, rel=0.05)


def test_streams_that_ran_one_after_the_other_have_no_joint_rate() -> None:
    with pytest.raises(ServiceFailed, match="did not run together"):
        joint_rate([steady(0.0, 50), steady(6.0, 50)], least_tokens=1)


def test_ratios_of_streams_are_paired_by_round_and_a_size_that_did_not_run_says_why() -> None:
    rates = {("bare", 4): [100.0, 200.0], ("service", 4): [95.0, 180.0], ("llama", 4): [50.0, 100.0]}
    four = rates_of(4, rates, "")
    assert four.of_bare is not None and four.of_llama is not None
    assert (four.of_bare.low, four.of_bare.high) == (0.9, 0.95)
    assert four.of_llama.median == pytest.approx(1.85)
    assert rates_of(4, {("bare", 4): [100.0]}, "the knee is lower").service is None


def test_goals_are_told_as_met_or_missed() -> None:
    rates = {("bare", 4): [100.0], ("service", 4): [80.0], ("llama", 4): [50.0]}
    rounds = [EnteringRound(10.0, 25.0, 400.0, 200.0), EnteringRound(10.0, 35.0, 400.0, 300.0)]
    entering = entering_result(30.0, rounds)
    assert entering.rate_kept.median == pytest.approx(0.625)
    bare, llama, prompt = goal_lines([rates_of(4, rates, "")], [entering])
    assert bare.endswith("MISSED")
    assert llama.endswith(": met")
    assert prompt.endswith(": met")
