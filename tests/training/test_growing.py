"""Trees that are grown say what was best, in comparisons that come out the same on the device."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.policy.tree import BoardFacts, Features, Leaf, Split, Tree, advise, in_words
from magnitude.training.cells import SUMS, Cell, ServedModel, Tried
from magnitude.training.growing import MOST_LEAVES, Example, facts_of, grown, rules_for, tried_as
from magnitude.training.work import BLOCKS

RULES = rules_for("decode", ())
FEW, MANY = (RULES.index(Leaf(threads_share=share)) for share in (0.5, 1.0))


def example(features: Features, best: int, saves: float = 0.3, weight: float = 1.0) -> Example:
    costs = np.full(len(RULES), np.nan)
    costs[[FEW, MANY]] = 0.0
    costs[best] = -saves
    return Example(part="decode", features=features, log_costs=costs, weight=weight)


def says(node: Split | Leaf, features: Features) -> float:
    tree = Tree(name="", decode=node, prefill=Leaf(), encode=Leaf())
    return advise(tree, "decode", features).threads_share


def test_a_limit_that_parts_what_is_best_is_found() -> None:
    examples = [
        example(Features(rows=float(rows)), FEW if rows < 8 else MANY) for rows in (1, 2, 4, 6, 8, 12, 16, 32)
    ]
    node = grown("decode", RULES, examples, seed=1)
    assert isinstance(node, Split)
    assert node.feature == "rows"
    assert 6 < node.below <= 8
    assert [says(node, one.features) for one in examples] == [0.5] * 4 + [1.0] * 4


def test_limits_are_written_with_few_digits_where_that_changes_nothing() -> None:
    examples = [example(Features(weight_bytes=size), best) for size, best in ((1.2345e8, FEW), (9.8765e8, MANY)) * 2]
    node = grown("decode", RULES, examples, seed=1)
    assert isinstance(node, Split)
    assert node.below == 5.6e8


def test_where_the_same_is_best_everywhere_there_is_nothing_to_compare() -> None:
    node = grown("decode", RULES, [example(Features(rows=float(rows)), FEW) for rows in (1, 2, 4, 8)], seed=1)
    assert isinstance(node, Leaf)
    assert node.threads_share == 0.5
    assert node.reason == "saves 26%, tried in 4 of 4 situations"


def test_of_rules_that_are_the_same_on_all_boards_the_one_nearer_to_the_default_is_told() -> None:
    quarter = RULES.index(Leaf(threads_share=0.25))
    examples = [example(Features(), FEW) for _ in range(4)]
    for one in examples:
        one.log_costs[quarter] = one.log_costs[FEW]
    assert says(grown("decode", RULES, examples, seed=1), Features()) == 0.5


def test_a_part_that_makes_no_difference_is_left_at_all_big_cores() -> None:
    node = grown("decode", RULES, [example(Features(rows=float(rows)), FEW, saves=0.0) for rows in (1, 8)], seed=1)
    assert isinstance(node, Leaf)
    assert node.threads_share == 1.0


def test_a_small_gain_in_much_work_goes_before_a_larger_one_in_little() -> None:
    examples = [example(Features(), FEW, saves=0.1, weight=10.0), example(Features(), MANY, saves=0.4)]
    assert says(grown("decode", RULES, examples, seed=1), Features()) == 0.5


def test_a_rule_that_was_seldom_tried_is_not_told_to_others() -> None:
    seldom = RULES.index(Leaf(threads_share=0.25))
    examples = [example(Features(), FEW, saves=0.1) for _ in range(9)]
    examples[0].log_costs[seldom] = -0.5
    assert says(grown("decode", RULES, examples, seed=1), Features()) == 0.5


def test_what_is_not_known_goes_the_way_it_went_in_training() -> None:
    examples = [example(Features(bandwidth_use=use), FEW if use > 0.7 else MANY) for use in (0.2, 0.4, 0.9, 1.0)]
    examples += [example(Features(bandwidth_use=None), MANY) for _ in range(2)]
    node = grown("decode", RULES, examples, seed=1)
    assert isinstance(node, Split)
    assert node.feature == "bandwidth_use"
    assert says(node, Features(bandwidth_use=None)) == 1.0
    assert says(node, Features(bandwidth_use=0.95)) == 0.5


def test_memory_bound_work_is_told_to_save_memory() -> None:
    examples = [example(Features(bandwidth_use=use), FEW if use > 0.7 else MANY) for use in (0.2, 0.4, 0.9, 1.0)]
    tree = Tree(name="", decode=grown("decode", RULES, examples, seed=1), prefill=Leaf(), encode=Leaf())
    assert advise(tree, "decode", Features(bandwidth_use=0.95)).saving_memory
    assert not advise(tree, "decode", Features(bandwidth_use=0.3)).saving_memory


def _leaves(node: Split | Leaf) -> int:
    return 1 if isinstance(node, Leaf) else _leaves(node.then) + _leaves(node.otherwise)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.builds(
                Features,
                bandwidth_use=st.none() | st.floats(0, 1),
                rows=st.integers(1, 32).map(float),
                clock_share=st.floats(0.3, 1.0),
                heat=st.sampled_from([0.0, 1.0, 2.0]),
                weight_bytes=st.sampled_from([1e8, 1e9, 4e9]),
            ),
            st.sampled_from([FEW, MANY]),
            st.floats(0.0, 1.0),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_a_tree_is_small_and_never_worse_than_the_better_rule_alone(data: list[tuple[Features, int, float]]) -> None:
    examples = [example(features, best, saves) for features, best, saves in data]
    node = grown("decode", RULES, examples, seed=1)
    assert _leaves(node) <= MOST_LEAVES
    shares = {0.5: FEW, 1.0: MANY}
    by_tree = sum(one.log_costs[shares[says(node, one.features)]] for one in examples)
    alone = min(sum(one.log_costs[rule] for one in examples) for rule in (FEW, MANY))
    # Rules within a hundredth of each other count as alike.
    assert by_tree <= alone + 0.01 * len(examples) + 1e-9
    assert "cores" in in_words(Tree(name="", decode=node, prefill=Leaf(), encode=Leaf()))


# --- what a rule is on a board ---


def tried(session: SessionSpec, tasks: int = 10, chunk: int = 0) -> Tried:
    blocks = np.zeros((BLOCKS, len(SUMS)))
    blocks[0, 0] = tasks
    return Tried(choice=Choice(session=session, chunk=chunk), blocks=blocks)


def model(*of: Tried, board: str = "shed", cores: float = 8.0, default: int | None = 0) -> ServedModel:
    cell = Cell(part="decode", key="k", tried=of, default=default, cores=cores)
    return ServedModel(
        board=board,
        model="chat",
        model_hash="ab",
        ort_version="1",
        own_threads=4,
        own_graph="model.onnx",
        own_chunk=128,
        weight_bytes=100,
        tasks=1,
        cells=(cell,),
    )


@pytest.mark.parametrize(
    ("leaf", "threads"),
    [
        (Leaf(threads_share=0.25), 1),
        (Leaf(threads_share=0.5), 2),
        (Leaf(threads_share=0.75), 3),
        (Leaf(), 4),
        (Leaf(of="all"), 8),
    ],
)
def test_a_rule_is_a_number_of_threads_of_the_board(leaf: Leaf, threads: int) -> None:
    board = model(*(tried(SessionSpec(threads=count)) for count in (4, 1, 2, 3, 8)))
    index = tried_as(leaf, board.cells[0], board, facts_of(board))
    assert index is not None
    session = board.cells[0].tried[index].choice.session
    assert session is not None
    assert session.threads == threads


def test_a_rule_that_was_not_tried_is_none_of_what_was() -> None:
    board = model(tried(SessionSpec(threads=4)))
    assert tried_as(Leaf(threads_share=0.5), board.cells[0], board, facts_of(board)) is None


def test_of_sessions_with_as_many_threads_the_plain_one_is_meant() -> None:
    board = model(
        tried(SessionSpec(threads=4)),
        tried(SessionSpec(threads=2, cpus=(4, 5)), tasks=90),
        tried(SessionSpec(threads=2)),
        tried(SessionSpec(threads=2, graph_file="fused.onnx"), tasks=90),
    )
    assert tried_as(Leaf(threads_share=0.5), board.cells[0], board, facts_of(board)) == 2


def test_fewer_usable_cores_make_fewer_threads() -> None:
    board = model(tried(SessionSpec(threads=4)), tried(SessionSpec(threads=2)), cores=2.0)
    assert tried_as(Leaf(), board.cells[0], board, facts_of(board)) == 1


def test_a_described_board_has_the_ceilings_of_its_profile() -> None:
    facts = facts_of(model(tried(SessionSpec(threads=4)), board="rock5b"))
    assert (facts.big_cores, facts.cores) == (4, 8)
    assert facts.read_bytes_s is not None
    assert math.isclose(facts.read_bytes_s, 12.0e9 * 0.9)


def test_any_other_board_is_known_by_how_its_model_was_loaded() -> None:
    assert facts_of(model(tried(SessionSpec(threads=4)))) == BoardFacts(big_cores=4, cores=8)


def test_prompts_may_be_told_a_piece_that_was_tried_somewhere() -> None:
    cell = Cell(part="prefill", key="k", tried=(tried(SessionSpec(threads=4), chunk=256),), default=None)
    board = model(tried(SessionSpec(threads=4)))
    other = ServedModel(**{**{name: getattr(board, name) for name in board.__struct_fields__}, "cells": (cell,)})
    assert {leaf.chunk for leaf in rules_for("prefill", [other])} == {0, 256}
    assert {leaf.chunk for leaf in rules_for("decode", [other])} == {0}
