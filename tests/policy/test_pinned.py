"""What stays fixed when the model, the runtime or the board change."""

from __future__ import annotations

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.pinned import Means, Pinned, possible


def test_a_pin_names_what_it_fixes() -> None:
    pinned = Pinned(board="pi5", model="m", decode=SessionSpec(threads=2), chunk=64, variant="")
    assert pinned.in_words == "answers by 2 threads, prompts in pieces of 64, the model's own weights"
    assert Pinned(board="pi5", model="m").empty


def test_what_can_still_be_is_kept_and_the_rest_is_named() -> None:
    pinned = Pinned(
        board="pi5",
        model="m",
        decode=SessionSpec(threads=2, graph_file="fused.onnx"),
        prefill=SessionSpec(threads=4, cpus=(4, 5, 6, 7)),
        chunk=64,
        variant="m-int4",
    )
    all_there = Means(cpus=tuple(range(8)), usable=8, graphs=("fused.onnx",), variants=("m-int4",))
    assert possible(pinned, all_there) == (pinned, ())
    less, lost = possible(pinned, Means(cpus=tuple(range(6)), usable=6))
    assert less == Pinned(board="pi5", model="m", chunk=64)
    assert lost == (
        "weights of m-int4: there is no such variant",
        "answers by fused.onnx, 2 threads: the model has no such graph",
        "prompts by 4 threads on 4-7: CPU 6-7 may not be used",
    )


def test_more_threads_than_may_run_at_once_cannot_be() -> None:
    pinned = Pinned(board="pi5", model="m", decode=SessionSpec(threads=3), prefill=SessionSpec(threads=2))
    less, lost = possible(pinned, Means(cpus=(0, 1, 2, 3), usable=2))
    assert (less.decode, less.prefill) == (None, SessionSpec(threads=2))
    assert lost == ("answers by 3 threads: 2 may run at once",)


def test_nothing_of_answers_can_be_fixed_of_what_does_not_decode() -> None:
    pinned = Pinned(board="pi5", model="e", decode=SessionSpec(threads=2), prefill=SessionSpec(threads=2), chunk=64)
    less, lost = possible(pinned, Means(cpus=(0, 1), usable=2, decodes=False))
    assert less == Pinned(board="pi5", model="e", prefill=SessionSpec(threads=2))
    assert len(lost) == 1


def test_what_there_is_is_told_in_words() -> None:
    assert Means(cpus=(0, 1), usable=2, variants=("m-int4",)).in_words == (
        "up to 2 threads on CPU 0-1; variants m-int4"
    )
