"""The protocol between the orchestrator and a worker, over a real process with a fake contender."""

import sys
from pathlib import Path

import pytest

from bench.compare import PROMPT_LENGTHS, compare, prompt_ids, unit_of
from bench.contender import ContenderFailed, ContenderPlan, Worker
from bench.machine import read_machine


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "model.onnx").write_bytes(bytes(1000))
    return str(tmp_path)


def plan(name: str, source: str, seconds: float = 1.0) -> ContenderPlan:
    return ContenderPlan(
        name=name,
        module="tests.bench.fake_contender",
        python=sys.executable,
        source=source,
        arguments=(str(seconds),),
    )


def test_a_worker_answers_although_its_library_prints_to_standard_output(source: str) -> None:
    worker = Worker(plan("fake", source))
    try:
        worker.start()
        worker.load(threads=2, context=64)
        times = worker.generate([1, 2, 3], 5)
    finally:
        worker.stop()
    assert worker.facts == {"version": "1", "threads": "2"}
    assert (times.prefill_s, times.ttft_s, times.decode_s) == (3.0, 4.0, 5.0)


def test_what_a_contender_raises_is_told_with_its_name(source: str) -> None:
    worker = Worker(plan("fake", source))
    try:
        worker.start()
        with pytest.raises(ContenderFailed, match="fake: ValueError: no room"):
            worker.load(threads=2, context=0)
    finally:
        worker.stop()


def test_a_worker_that_dies_is_told_apart_from_one_that_answers(source: str) -> None:
    worker = Worker(plan("fake", source))
    try:
        with pytest.raises(ContenderFailed, match="left with status 3"):
            worker.generate([0], 1)
    finally:
        worker.stop()


def test_ratios_are_ours_over_theirs_and_a_contender_that_fails_does_not_stop_the_others(source: str) -> None:
    plans = [
        plan("magnitude", source, 0.5),
        ContenderPlan(name="broken", module="tests.bench.no_such_module", python=sys.executable, source=source),
        plan("slow", source, 1.0),
    ]
    comparison = compare(plans, read_machine(), rounds=2, progress=lambda _: None)
    ours, slow = comparison.contenders
    assert list(comparison.missing) == ["broken"]
    assert ours.figures["prefill 256"].ours_over_theirs is None
    ratio = slow.figures["prefill 256"].ours_over_theirs
    assert ratio is not None
    assert ratio.median == pytest.approx(2.0)
    assert slow.figures["decode 1024"].spread.median == pytest.approx(1.0)
    assert slow.source_bytes == 1000
    assert slow.memory_end.rss_bytes > 0


def test_a_round_gives_all_contenders_the_same_prompt_and_each_round_another() -> None:
    assert prompt_ids(32, 1) == prompt_ids(32, 1)
    assert prompt_ids(32, 1) != prompt_ids(32, 2)
    assert [len(prompt_ids(length, 0)) for length in PROMPT_LENGTHS] == list(PROMPT_LENGTHS)


def test_times_to_the_first_token_are_milliseconds_and_the_rest_are_rates() -> None:
    assert (unit_of("ttft 32"), unit_of("prefill 32"), unit_of("decode 256")) == ("ms", "tokens/s", "tokens/s")
