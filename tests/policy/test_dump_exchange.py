"""Dumps that are taken from one board to another, and what may be fixed from a file."""

from __future__ import annotations

import msgspec
import pytest

from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import RequestError
from magnitude.persist import sealed
from magnitude.policy.dump_exchange import exported, merged, parsed, pin_from, shown_of, taken
from magnitude.policy.dumps import Dump, Kept
from magnitude.policy.learned import SCHEMA, Binding, Choice, Entry, Evidence, Learned, Rejected, Verified
from magnitude.policy.pinned import Pinned, choices_of
from magnitude.policy.strategy import Strategy
from magnitude.policy.trained import SCHEMA as TRAINED_SCHEMA
from magnitude.policy.trained import Proof, Trained

HERE = Binding(board="pi5-bare", model="m", model_hash="a" * 64, ort_version="1.32.0", cpu_features=("asimd",))
ONE, TWO, FOUR = (Choice(session=SessionSpec(threads=threads)) for threads in (1, 2, 4))


def entry(key: str, chosen: Choice, weight: float = 50, part: str = "decode") -> Entry:
    return msgspec.convert(
        {
            "part": part,
            "key": key,
            "chosen": msgspec.to_builtins(chosen),
            "evidence": [msgspec.to_builtins(Evidence(choice=chosen, cost_s=0.01, weight=weight))],
        },
        Entry,
    )


LEARNED = Learned(
    binding=HERE,
    entries=(entry("rows=1", TWO, 90), entry("rows=2", FOUR, 10)),
    rejected=(Rejected(part="decode", key="rows=1", choice=FOUR, reason="slower"),),
    verified=(Verified(session=SessionSpec(threads=2), passed=True, equal=True),),
    samples=100,
)


def test_an_export_comes_back_as_it_was() -> None:
    assert parsed(exported(LEARNED, 7), "x.json") == Dump(generation=7, learned=LEARNED)


def test_a_trained_table_is_told_from_a_dump() -> None:
    trained = Trained(proof=Proof(tasks=1, files=1, boards=("pi5-bare",), tolerance=0.02))
    assert parsed(sealed(trained, schema=TRAINED_SCHEMA), "x.json") == trained


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\0" * 100, exported(LEARNED, 7)[:-40], b"[" * 100_000])
def test_what_is_torn_or_no_dump_is_refused_by_its_name(data: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        parsed(data, "kitchen.json")
    assert refused.value.message.startswith("kitchen.json")
    assert refused.value.hint


def test_a_changed_figure_in_an_export_is_noticed() -> None:
    with pytest.raises(RequestError, match="checksum"):
        parsed(exported(LEARNED, 7).replace(b'"cost_s":0.01', b'"cost_s":0.02'), "x.json")


def test_a_dump_of_another_version_is_named_so() -> None:
    with pytest.raises(RequestError, match="another version"):
        parsed(sealed(Dump(generation=1, learned=LEARNED), schema=SCHEMA + 1), "x.json")


def test_an_import_on_the_same_board_is_taken_as_it_is_and_says_where_it_is_from() -> None:
    there = msgspec.structs.replace(HERE, model="renamed")
    got = taken(LEARNED, there, as_prior=False)
    assert got.binding == there
    assert [each.origin for each in got.entries] == ["imported", "imported"]
    assert (got.rejected, got.verified, got.samples) == (LEARNED.rejected, LEARNED.verified, LEARNED.samples)
    assert [each.evidence for each in got.entries] == [each.evidence for each in LEARNED.entries]


def test_an_import_from_elsewhere_is_refused_with_what_differs_or_taken_as_a_hint() -> None:
    there = msgspec.structs.replace(HERE, board="rock5b", ort_version="1.33.0")
    with pytest.raises(RequestError) as refused:
        taken(LEARNED, there, as_prior=False)
    assert "board pi5-bare -> rock5b, ONNX Runtime 1.32.0 -> 1.33.0" in refused.value.message
    assert "--as-prior" in refused.value.hint
    hint = taken(LEARNED, there, as_prior=True)
    assert hint.binding == there
    assert {each.weight for row in hint.entries for each in row.evidence} == {1.0}
    assert (hint.verified, hint.rejected) == ((), ())


def test_a_table_adds_what_was_not_measured_and_changes_nothing_that_was() -> None:
    table = Learned(
        binding=HERE,
        entries=(entry("rows=1", ONE), entry("rows=9", ONE)),
        rejected=(
            Rejected(part="decode", key="rows=1", choice=TWO, reason="trained"),
            Rejected(part="decode", key="rows=9", choice=TWO, reason="trained"),
        ),
    )
    both = merged(LEARNED, table)
    assert [(each.key, each.chosen) for each in both.entries] == [("rows=1", TWO), ("rows=2", FOUR), ("rows=9", ONE)]
    # What was measured to be the best is not refused for a table's sake.
    assert {(one.key, one.choice) for one in both.rejected} == {("rows=1", FOUR), ("rows=9", TWO)}
    assert (both.samples, both.verified) == (LEARNED.samples, LEARNED.verified)


def test_a_pin_is_made_from_a_strategy_from_a_dump_and_from_a_pin() -> None:
    strategy = Strategy(prefill=SessionSpec(threads=4), decode=SessionSpec(threads=2), prefill_chunk=64)
    whole = pin_from(msgspec.json.encode(strategy), "x", HERE)
    assert (whole.decode, whole.prefill, whole.chunk) == (SessionSpec(threads=2), SessionSpec(threads=4), 64)
    assert whole.variant == ""
    best = pin_from(exported(LEARNED, 1), "x", HERE)
    assert (best.decode, best.prefill, best.variant) == (SessionSpec(threads=2), None, None)
    assert pin_from(msgspec.json.encode(whole), "x", msgspec.structs.replace(HERE, model="other")).model == "other"


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b"x", b'{"decode":{"threads":"two"}}', exported(Learned(binding=HERE), 1)]
)
def test_a_file_that_fixes_nothing_is_no_pin(data: bytes) -> None:
    with pytest.raises(RequestError):
        pin_from(data, "x", HERE)


def test_a_pin_by_threads_is_placed_as_the_loop_would_and_one_by_cpus_as_it_says() -> None:
    def on(threads: int) -> SessionSpec:
        return SessionSpec(threads=threads, cpus=tuple(range(4, 4 + threads)), arena=True)

    own = SessionSpec(threads=4)
    pinned = Pinned(board="b", model="m", decode=SessionSpec(threads=2), chunk=64)
    assert choices_of(pinned, own=own, chunk=128, on=on) == {
        "decode": Choice(session=SessionSpec(threads=2, cpus=(4, 5), arena=True)),
        "prefill": Choice(session=own, chunk=64),
    }
    by_cpus = Pinned(board="b", model="m", prefill=SessionSpec(threads=1, cpus=(0,)), variant="")
    assert choices_of(by_cpus, own=own, chunk=128, on=on) == {
        "prefill": Choice(session=SessionSpec(threads=1, cpus=(0,)), chunk=128),
        "encode": Choice(session=SessionSpec(threads=1, cpus=(0,))),
        "variant": Choice(),
    }


def test_a_folder_with_only_retired_figures_shows_them_as_such() -> None:
    gone = Dump(generation=3, learned=LEARNED, retired="ONNX Runtime 1.31.0 -> 1.32.0")
    shown = shown_of(Kept(folder="/f", dump=None, pinned=None, generations=(1, 2), retired=(gone,)))
    assert shown is not None
    assert (shown.model, shown.generation, shown.learned.entries) == ("m", 0, ())
    assert shown.retired[0].why == "ONNX Runtime 1.31.0 -> 1.32.0"
    assert shown_of(Kept(folder="/f", dump=None, pinned=None, generations=(), retired=())) is None
