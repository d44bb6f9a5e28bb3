"""The decision tree: what it says, and that it says the same after a way through a file."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.board.profiles import load_profile
from magnitude.policy.situation import Situation
from magnitude.policy.tree import (
    FEATURES,
    TREE_PARTS,
    BoardFacts,
    Features,
    Leaf,
    ModelWork,
    Node,
    Split,
    Tree,
    advise,
    default_tree,
    facts_of_board,
    features_of,
    in_words,
)

PI5 = BoardFacts(big_cores=4, cores=4, read_bytes_s=13.23e9, macs_s=110e9)
SMALL = ModelWork(weight_bytes=120_000_000)

leaves = st.builds(
    Leaf,
    threads_share=st.floats(0.01, 1.0),
    of=st.sampled_from(["big", "all"]),
    chunk=st.integers(0, 4096),
    saving_memory=st.booleans(),
    reason=st.text(max_size=5),
)
nodes = st.recursive(
    leaves,
    lambda inner: st.builds(
        Split,
        feature=st.sampled_from(FEATURES),
        below=st.floats(-10, 10),
        then=inner,
        otherwise=inner,
        unknown=st.sampled_from(["then", "otherwise"]),
    ),
    max_leaves=12,
)
trees = st.builds(Tree, name=st.text(max_size=5), decode=nodes, prefill=nodes, encode=nodes)
some_features = st.builds(
    Features,
    bandwidth_use=st.none() | st.floats(0, 1.5),
    rows=st.integers(1, 40).map(float),
    tokens=st.integers(1, 4096).map(float),
    clock_share=st.floats(0.1, 1.0),
    heat=st.sampled_from([0.0, 1.0, 2.0]),
)


def test_one_answer_at_a_time_gets_half_of_the_big_cores_by_the_shipped_tree() -> None:
    advice = advise(default_tree(), "decode", features_of("decode", Situation(cores=4), PI5, SMALL))
    assert advice.threads(PI5) == 2
    assert advice.saving_memory
    assert advice.reason == "memory-bound: bandwidth_use 1 >= 0.7"


def test_a_prompt_gets_all_big_cores_by_the_shipped_tree() -> None:
    board = msgspec.structs.replace(PI5, cores=8)
    at = Situation(cores=8, tokens=128)
    advice = advise(default_tree(), "prefill", features_of("prefill", at, board, SMALL))
    assert advice.threads(board) == 4
    assert advice.reason.startswith("compute-bound")


def test_many_rows_turn_a_decode_step_into_computing() -> None:
    says = [
        advise(default_tree(), "decode", features_of("decode", Situation(cores=4, rows=rows), PI5, SMALL)).threads(
            PI5
        )
        for rows in (1, 2, 4, 8, 16, 32)
    ]
    assert says == sorted(says)
    assert says[0] == 2
    assert says[-1] == 4


def test_a_lower_clock_makes_work_compute_bound_earlier() -> None:
    at = Situation(cores=4, rows=6)
    fast = features_of("decode", at, PI5, SMALL)
    slow = features_of("decode", msgspec.structs.replace(at, clock_share=0.3), PI5, SMALL)
    assert slow.bandwidth_use is not None
    assert fast.bandwidth_use is not None
    assert slow.bandwidth_use < fast.bandwidth_use


def test_what_was_seen_goes_before_the_roofline() -> None:
    features = features_of("decode", Situation(cores=4), PI5, SMALL, read_bytes_s=4e9)
    assert advise(default_tree(), "decode", features).threads(PI5) == 4


def test_a_board_nobody_described_keeps_all_of_its_big_cores() -> None:
    board = BoardFacts(big_cores=3, cores=6)
    features = features_of("decode", Situation(cores=6), board, SMALL)
    assert features.bandwidth_use is None
    assert advise(default_tree(), "decode", features).threads(board) == 3


@pytest.mark.parametrize(("threshold", "threads"), [(0.5, 2), (0.9, 4)])
def test_the_threshold_of_the_configuration_is_the_one_compared_with(threshold: float, threads: int) -> None:
    advice = advise(default_tree(threshold), "decode", Features(bandwidth_use=0.8))
    assert advice.threads(PI5) == threads


@pytest.mark.parametrize(("big", "threads"), [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4)])
def test_half_of_the_big_cores_is_at_least_one(big: int, threads: int) -> None:
    advice = advise(default_tree(), "decode", Features(bandwidth_use=1.0))
    assert advice.threads(BoardFacts(big_cores=big, cores=8)) == threads


@given(share=st.integers(1, 16), count=st.integers(1, 16), cores=st.integers(1, 16))
def test_a_share_of_threads_is_always_a_number_of_cores_that_there_is(share: int, count: int, cores: int) -> None:
    tree = Tree(name="", decode=Leaf(threads_share=min(1.0, share / count)), prefill=Leaf(), encode=Leaf())
    board = BoardFacts(big_cores=count, cores=cores)
    threads = advise(tree, "decode", Features()).threads(board)
    assert 1 <= threads <= cores
    if share <= count <= cores:
        assert threads == share


@pytest.mark.parametrize("name", ["pi5-bare", "rock5b"])
def test_described_boards_decode_by_fewer_threads_than_they_read_prompts_with(name: str) -> None:
    profile = load_profile(name)
    board = facts_of_board(profile, [cpu for cluster in profile.clusters for cpu in cluster.cpus])
    at = Situation(cores=board.cores, tokens=128)
    decode = advise(default_tree(), "decode", features_of("decode", at, board, SMALL)).threads(board)
    prefill = advise(default_tree(), "prefill", features_of("prefill", at, board, SMALL)).threads(board)
    assert (decode, prefill) == (2, 4)


def test_a_board_left_with_its_small_cores_has_those_as_its_big_ones() -> None:
    board = facts_of_board(load_profile("rock5b"), [0, 1, 2])
    assert (board.big_cores, board.cores) == (3, 3)
    assert board.macs_s == pytest.approx(3 * 1.47 * 1.8e9)


def test_small_cores_beside_fast_ones_do_not_count_as_big() -> None:
    board = facts_of_board(load_profile("rock5b"), range(8))
    assert (board.big_cores, board.cores) == (4, 8)


def test_cores_that_the_profile_does_not_know_are_counted_alone() -> None:
    board = facts_of_board(load_profile("pi5-bare"), [70, 71])
    assert (board.big_cores, board.cores, board.read_bytes_s) == (2, 2, None)


@given(tree=trees, features=some_features, part=st.sampled_from(TREE_PARTS))
def test_a_tree_says_the_same_after_a_way_through_json(tree: Tree, features: Features, part: str) -> None:
    again = msgspec.json.decode(msgspec.json.encode(tree), type=Tree)
    assert again == tree
    assert advise(again, part, features) == advise(tree, part, features)


@given(node=nodes, features=some_features)
def test_every_leaf_that_is_reached_is_one_that_is_written_out(node: Node, features: Features) -> None:
    tree = Tree(name="t", decode=node, prefill=Leaf(), encode=Leaf())
    advice = advise(tree, "decode", features)
    leaf = Leaf(
        threads_share=advice.threads_share, of=advice.of, chunk=advice.chunk, saving_memory=advice.saving_memory
    )
    assert leaf.in_words in in_words(tree)


@pytest.mark.parametrize(
    "leaf",
    [{"type": "leaf", "threads_share": 0}, {"type": "leaf", "threads_share": 1.5}, {"type": "leaf", "chunk": -1}],
)
def test_a_file_with_an_impossible_leaf_is_refused(leaf: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "t", "decode": leaf, "prefill": leaf, "encode": leaf}, Tree)


def test_a_split_on_a_feature_that_nobody_has_is_refused() -> None:
    leaf = msgspec.to_builtins(Leaf())
    split = {"type": "split", "feature": "moon", "below": 1, "then": leaf, "otherwise": leaf}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "t", "decode": split, "prefill": leaf, "encode": leaf}, Tree)


def test_the_shipped_tree_reads_as_a_few_comparisons() -> None:
    assert in_words(default_tree()).splitlines()[:5] == [
        "tree: shipped",
        "decode:",
        "  if bandwidth_use < 0.7 or not known:",
        "    all big cores (compute-bound)",
        "  else:",
    ]
