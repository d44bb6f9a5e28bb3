"""The order of a sweep, and what follows from what it compared."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.policy.rules import ModelFacts
from magnitude.policy.terms import BoardSeen
from magnitude.tuning.sweep import PAIRS, STAGES, Compared, Step, Sweep, compare

FOUR = BoardSeen(cores=(0, 1, 2, 3), usable=4)
MIXED = BoardSeen(cores=(4, 5, 6, 7, 0, 1, 2, 3), usable=8, big=4)


def facts(threads: int = 4, graphs: tuple[str, ...] = (), kind: str = "decoder") -> ModelFacts:
    found = ModelFacts(name="m", kind="decoder", own=SessionSpec(threads=threads), graphs=graphs, max_batch=4)
    return msgspec.structs.replace(found, kind=kind)


def swept(sweep: Sweep, time_of: Callable[[Step, Choice], float], noise: float = 0.01, seed: int = 1) -> Sweep:
    chance = random.Random(seed)
    while (step := sweep.next()) is not None:
        pairs = [
            (
                time_of(step, step.base) * chance.lognormvariate(0, noise),
                time_of(step, step.challenger) * chance.lognormvariate(0, noise),
            )
            for _ in range(PAIRS)
        ]
        sweep.add(compare(step, pairs, 100))
    return sweep


def session_of(choice: Choice) -> SessionSpec:
    assert choice.session is not None
    return choice.session


def board_like(step: Step, choice: Choice) -> float:
    """Prompts gain from every core, answers are done with two."""
    session = session_of(choice)
    if step.part == "prefill":
        tokens = choice.chunk if step.stage == "pieces" else step.tokens
        return tokens / session.threads
    return {1: 1.4, 2: 1.0, 3: 1.05, 4: 1.14}.get(session.threads, 1.5)


def test_memory_comes_before_threads_and_threads_before_plans_and_pieces() -> None:
    sweep = Sweep(facts(graphs=("separate.onnx",)), FOUR, least_gain=0.03)
    swept(sweep, board_like)
    stages = [step.stage for step in sweep.compared if (step.part, step.tokens) == ("prefill", 128)]
    assert stages == sorted(stages, key=STAGES.index) and set(stages) == set(STAGES)


def test_each_part_gets_the_threads_that_it_gains_from() -> None:
    sweep = swept(Sweep(facts(), FOUR, least_gain=0.03), board_like)
    chosen = {entry.part: session_of(entry.chosen).threads for entry in sweep.entries()}
    assert chosen == {"prefill": 4, "decode": 2}
    assert all(entry.origin == "tuned" for entry in sweep.entries())


def test_a_thread_that_brings_less_than_the_least_gain_is_left_to_others() -> None:
    def flat(step: Step, choice: Choice) -> float:
        return {1: 1.5, 2: 1.0, 3: 0.99, 4: 1.04}[session_of(choice).threads]

    sweep = swept(Sweep(facts(), FOUR, least_gain=0.03), flat)
    assert {session_of(entry.chosen).threads for entry in sweep.entries() if entry.part == "decode"} == {2}


def test_fast_cores_are_used_where_cores_differ() -> None:
    def big_little(step: Step, choice: Choice) -> float:
        session = session_of(choice)
        wandering = 1.0 if session.cpus else 1.3  # now and then a thread is on a slow core
        return wandering * (2.0 if session.threads > 4 else 4.0 / session.threads)

    sweep = swept(Sweep(facts(), MIXED, least_gain=0.03), big_little)
    prefill = next(entry.chosen for entry in sweep.entries() if entry.part == "prefill")
    assert session_of(prefill).cpus == (4, 5, 6, 7)


def test_a_better_fusion_plan_is_compared_with_the_best_threads_only() -> None:
    def fused(step: Step, choice: Choice) -> float:
        session = session_of(choice)
        return board_like(step, choice) * (0.8 if session.graph_file else 1.0)

    sweep = swept(Sweep(facts(graphs=("separate.onnx",)), FOUR, least_gain=0.03), fused)
    decode = next(entry for entry in sweep.entries() if entry.part == "decode")
    assert session_of(decode.chosen) == SessionSpec(threads=2, graph_file="separate.onnx")
    plans = [step for step in sweep.compared if step.part == "decode" and session_of(step.challenger).graph_file]
    assert {session_of(step.challenger).threads for step in plans} == {2}


def test_what_was_refused_is_not_chosen_and_not_tried_again() -> None:
    sweep = Sweep(facts(2), BoardSeen(cores=(0, 1), usable=2), least_gain=0.03)
    while (step := sweep.next()) is not None:
        sweep.add(Compared(step=step, refused="no room"))
    assert sweep.entries() == ()


def test_an_interrupted_sweep_goes_on_where_it_was() -> None:
    whole = swept(Sweep(facts(), FOUR, least_gain=0.03), board_like)
    known = list(whole.compared.values())[:5]
    read = msgspec.json.decode(msgspec.json.encode(known), type=list[Compared])
    rest = Sweep(facts(), FOUR, least_gain=0.03, before=read)
    step = rest.next()
    assert step is not None and step not in {one.step for one in known}
    swept(rest, board_like)
    assert set(rest.compared) == set(whole.compared)


def test_nothing_is_compared_twice() -> None:
    sweep = swept(Sweep(facts(graphs=("separate.onnx",)), FOUR, least_gain=0.03), board_like)
    seen = [(step.part, step.key, step.challenger) for step in sweep.compared]
    assert len(seen) == len(set(seen))


def test_an_encoder_is_swept_by_its_texts() -> None:
    sweep = swept(Sweep(facts(kind="embedder"), FOUR, least_gain=0.03), lambda step, choice: 1.0)
    assert {step.part for step in sweep.compared} == {"encode"}


@pytest.mark.parametrize("pairs", [[], [(0.0, 0.0)] * 5])
def test_times_that_are_none_are_no_comparison(pairs: list[tuple[float, float]]) -> None:
    step = Sweep(facts(), FOUR, least_gain=0.03).next()
    assert step is not None
    assert compare(step, pairs, 0).refused


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 0.3))
def test_noise_alone_hardly_ever_moves_a_choice_to_more_threads(seed: int, noise: float) -> None:
    sweep = swept(Sweep(facts(2), FOUR, least_gain=0.03), lambda step, choice: 1.0, noise, seed)
    more = [entry for entry in sweep.entries() if session_of(entry.chosen).threads > 2]
    assert len(more) <= 1
