"""What stays fixed when the model, the runtime or the board change."""

from __future__ import annotations

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.pinned import Pinned, possible


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
    same, lost = possible(pinned, graphs=("fused.onnx",), cpus=range(8), variants=("m-int4",))
    assert (same, lost) == (pinned, ())
    less, lost = possible(pinned, graphs=(), cpus=range(6), variants=())
    assert less == Pinned(board="pi5", model="m", chunk=64)
    assert lost == (
        "answers by fused.onnx, 2 threads: the model has no such graph any more",
        "prompts by 4 threads on 4-7: CPU 6-7 may not be used",
        "weights of m-int4: there is no such variant any more",
    )
