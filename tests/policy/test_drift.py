"""Which figures still hold after an upgrade, and how much of the others is believed."""

from __future__ import annotations

import msgspec
import pytest

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.drift import changes, gives_prior, holds, weakened
from magnitude.policy.learned import Binding, Choice, Entry, Evidence, Learned, Rejected, Verified

HERE = Binding(
    board="pi5-bare",
    model="smollm2",
    model_hash="a" * 64,
    ort_version="1.32.0",
    kernel_version="0.3",
    cpu_features=("asimd", "asimddp"),
)
TWO = Choice(session=SessionSpec(threads=2))
FOUR = Choice(session=SessionSpec(threads=4))
LEARNED = Learned(
    binding=HERE,
    entries=(
        Entry(
            part="decode",
            key="rows=1 cores=4 clock=0.9",
            chosen=TWO,
            evidence=(
                Evidence(choice=TWO, cost_s=0.011, log_spread=0.1, weight=80, failed=0.2),
                Evidence(choice=FOUR, cost_s=0.016, log_spread=0.1, weight=0.4),
            ),
        ),
    ),
    rejected=(Rejected(part="decode", key="", choice=FOUR, reason="tasks timed out"),),
    verified=(Verified(session=SessionSpec(threads=2), passed=True, equal=True),),
    samples=900,
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ort_version": "1.33.0"}, "ONNX Runtime 1.32.0 -> 1.33.0"),
        ({"kernel_version": ""}, "operator library 0.3 -> none"),
        ({"model_hash": "b" * 64}, "weights aaaaaaaaaaaa -> bbbbbbbbbbbb"),
        ({"board": "rock5b"}, "board pi5-bare -> rock5b"),
        ({"cpu_features": ("asimd", "i8mm")}, "CPU features -asimddp +i8mm"),
    ],
)
def test_each_change_of_the_binding_is_named_and_ends_what_was_learned(changed: dict[str, object], said: str) -> None:
    now = msgspec.structs.replace(HERE, **changed)
    assert changes(HERE, now) == (said,)
    assert not holds(HERE, now)


def test_the_order_of_cpu_features_those_that_change_no_speed_and_a_renamed_folder_change_nothing() -> None:
    now = msgspec.structs.replace(HERE, cpu_features=("asimddp", "asimd", "paca"), model="smollm2-again")
    assert holds(HERE, now)


@pytest.mark.parametrize(
    ("changed", "safe"),
    [
        ({"ort_version": "1.33.0", "kernel_version": "0.4"}, True),
        ({"model_hash": "b" * 64}, True),
        ({"model_hash": "b" * 64, "model": "another"}, False),
        ({"cpu_features": ("asimd",)}, False),
        ({"board": "rock5b"}, False),
    ],
)
def test_only_the_same_cpu_on_the_same_board_gives_a_hint(changed: dict[str, object], safe: bool) -> None:
    assert gives_prior(HERE, msgspec.structs.replace(HERE, **changed)) is safe


def test_a_hint_weighs_one_sample_at_most_and_proves_nothing() -> None:
    now = msgspec.structs.replace(HERE, ort_version="1.33.0")
    hint = weakened(LEARNED, now)
    assert hint.binding == now
    (entry,) = hint.entries
    assert entry.chosen == TWO
    assert [each.weight for each in entry.evidence] == [1.0, 0.4]
    assert [each.cost_s for each in entry.evidence] == [0.011, 0.016]
    assert [each.failed for each in entry.evidence] == [0.0, 0.0]
    assert (hint.verified, hint.rejected, hint.samples) == ((), (), 0)
