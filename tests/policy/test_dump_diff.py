"""What `magnitude strategy diff` tells of two dumps."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.dump_diff import diff
from magnitude.policy.learned import Binding, Choice, Entry, Evidence, Learned, Rejected

HERE = Binding(board="pi5", model="m", model_hash="a", ort_version="1.32.0")
CHOICES = [Choice(session=SessionSpec(threads=threads)) for threads in (1, 2, 4)]

EVIDENCE = st.builds(Evidence, choice=st.sampled_from(CHOICES), cost_s=st.floats(1e-4, 1.0), weight=st.just(50.0))
ENTRIES = st.dictionaries(
    st.sampled_from(["rows=1", "rows=2", "rows=3", "rows=5"]),
    st.lists(EVIDENCE, min_size=1, max_size=3, unique_by=lambda each: each.choice),
).map(
    lambda by_key: tuple(
        Entry(part="decode", key=key, chosen=evidence[0].choice, evidence=tuple(evidence))
        for key, evidence in by_key.items()
    )
)
LEARNED = st.builds(Learned, binding=st.just(HERE), entries=ENTRIES)


@given(LEARNED)
def test_a_dump_does_not_differ_from_itself(one: Learned) -> None:
    assert diff(one, one).differences == ()
    assert diff(one, one).same == len(one.entries)


@given(LEARNED, LEARNED)
def test_every_situation_is_told_once_and_the_other_way_round_mirrors_it(one: Learned, other: Learned) -> None:
    there, back = diff(one, other), diff(other, one)
    keys = {entry.key for entry in (*one.entries, *other.entries)}
    assert sorted(difference.key for difference in there.differences) == sorted({d.key for d in there.differences})
    assert len(there.differences) + there.same == len(keys)
    assert there.same == back.same
    mirrored = {"new": "gone", "gone": "new"}
    assert [(d.key, mirrored.get(d.change, d.change), d.after, d.before) for d in there.differences] == [
        (d.key, d.change, d.before, d.after) for d in back.differences
    ]


def test_choices_costs_rejections_and_bindings_are_told_apart() -> None:
    one, two, _ = CHOICES

    def learned(key: str, chosen: Choice, cost_s: float, **more: object) -> Learned:
        evidence = (Evidence(choice=chosen, cost_s=cost_s, weight=50),)
        entries = (Entry(part="decode", key=key, chosen=chosen, evidence=evidence),)
        return msgspec.structs.replace(Learned(binding=HERE, entries=entries), **more)

    before = learned("rows=1", one, 0.016)
    assert [d.change for d in diff(before, learned("rows=1", two, 0.011)).differences] == ["other choice"]
    assert [d.change for d in diff(before, learned("rows=1", one, 0.018)).differences] == ["cost"]
    assert diff(before, learned("rows=1", one, 0.0165)).differences == ()
    rejected = Rejected(part="decode", key="", choice=two, reason="5 % of tasks failed")
    (told,) = diff(before, learned("rows=1", one, 0.016, rejected=(rejected,))).differences
    assert (told.change, told.after, told.reason) == ("rejected", "2 threads", "5 % of tasks failed")
    newer = msgspec.structs.replace(HERE, ort_version="1.33.0")
    assert diff(before, learned("rows=1", one, 0.016, binding=newer)).binding == ("ONNX Runtime 1.32.0 -> 1.33.0",)
