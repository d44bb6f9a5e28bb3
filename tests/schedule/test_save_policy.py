from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.config.kv import KvSettings
from magnitude.schedule.save_policy import (
    HOUR_S,
    RETRY_S,
    Candidate,
    Coverage,
    SavedFile,
    SavePolicy,
    covering,
)
from magnitude.schedule.saved_slot import SavedSlot
from magnitude.schedule.scope import Scope

MB = 1_000_000
SETTINGS = KvSettings(save_after_s=300, saved_max_bytes=100 * MB, saved_min_tokens=256, saved_hourly_bytes=1000 * MB)


def candidate(slot: int = 0, **fields: object) -> Candidate:
    values: dict[str, object] = {"tokens": 1000, "size_bytes": 20 * MB, "idle_s": 400.0, **fields}
    return Candidate(slot=slot, **values)  # type: ignore[arg-type]


def copy(name: str, size_bytes: int = 20 * MB, idle_s: float = 1000.0, *, usable: bool = True) -> SavedFile:
    return SavedFile(saved_id=name, size_bytes=size_bytes, idle_s=idle_s, usable=usable)


def slots(plan: object) -> list[int]:
    return [chosen.slot for chosen in plan.save]  # type: ignore[attr-defined]


def test_an_idle_conversation_is_saved() -> None:
    plan = SavePolicy(SETTINGS, 0.0).decide([candidate(3)], [], 0.0)
    assert (slots(plan), plan.delete) == ([3], ())


def test_short_busy_and_known_conversations_are_not_written() -> None:
    policy = SavePolicy(SETTINGS, 0.0)
    some = [
        candidate(0, tokens=255),
        candidate(1, idle_s=299.0),
        candidate(2, covered_tokens=750, covered_by="a"),
        candidate(3, covered_tokens=749, covered_by="a"),
    ]
    assert slots(policy.decide(some, [copy("a")], 0.0)) == [3]


def test_what_is_on_the_disk_already_only_leaves_memory() -> None:
    some = [
        candidate(0, covered_tokens=1000, covered_by="a"),
        candidate(1, covered_tokens=800, covered_by="b"),
        candidate(2, covered_tokens=1000, covered_by="a", idle_s=10.0),
        candidate(3, covered_tokens=900, covered_by="too old"),
    ]
    saved = [copy("a"), copy("b"), copy("too old", 90 * MB, 9000.0)]
    plan = SavePolicy(SETTINGS, 0.0).decide(some, saved, 0.0)
    assert (slots(plan), plan.delete) == ([], ("too old",))
    assert [one.slot for one in plan.free] == [0, 1]


def test_at_a_stop_nothing_needs_to_have_been_idle_but_all_bounds_hold() -> None:
    some = [candidate(0, idle_s=200.0), candidate(1, idle_s=0.0), candidate(2, tokens=10, idle_s=0.0)]
    tight = KvSettings(saved_max_bytes=100 * MB, saved_hourly_bytes=30 * MB, save_after_s=300)
    assert slots(SavePolicy(SETTINGS, 0.0).decide(some, [], 0.0, at_stop=True)) == [1, 0]
    assert slots(SavePolicy(tight, 0.0).decide(some, [], 0.0, at_stop=True)) == [1]


def test_those_idle_for_longest_are_written_first() -> None:
    settings = KvSettings(saved_hourly_bytes=45 * MB, save_after_s=1)
    some = [candidate(0, idle_s=10.0), candidate(1, idle_s=30.0), candidate(2, idle_s=20.0)]
    assert slots(SavePolicy(settings, 0.0).decide(some, [], 0.0)) == [1, 2]


def test_the_useless_and_then_the_oldest_copies_make_room() -> None:
    saved = [copy("old", idle_s=5000), copy("new", idle_s=10), copy("foreign", idle_s=1, usable=False)]
    saved += [copy("middle", 40 * MB, idle_s=100)]
    plan = SavePolicy(SETTINGS, 0.0).decide([candidate(0)], saved, 0.0)
    assert (slots(plan), plan.delete) == ([0], ("foreign",))
    plan = SavePolicy(SETTINGS, 0.0).decide([candidate(0, size_bytes=30 * MB)], saved, 0.0)
    assert (slots(plan), plan.delete) == ([0], ("foreign", "old"))


def test_a_copy_that_a_longer_one_contains_goes_with_it() -> None:
    grown = candidate(0, covered_tokens=500, covered_by="a", contained=True)
    assert SavePolicy(SETTINGS, 0.0).decide([grown], [copy("a"), copy("b")], 0.0).delete == ("a",)
    branch = candidate(0, covered_tokens=500, covered_by="a", contained=False)
    assert SavePolicy(SETTINGS, 0.0).decide([branch], [copy("a"), copy("b")], 0.0).delete == ()


def test_a_lowered_bound_is_kept_without_anything_new() -> None:
    saved = [copy("a", 60 * MB, 10), copy("b", 60 * MB, 20)]
    assert SavePolicy(SETTINGS, 0.0).decide([], saved, 0.0).delete == ("b",)


def test_with_saving_switched_off_nothing_is_written_and_nothing_stays() -> None:
    plan = SavePolicy(KvSettings(save=False), 0.0).decide([candidate()], [copy("a")], 0.0, at_stop=True)
    assert (plan.save, plan.delete) == ((), ("a",))


def test_an_hours_bytes_are_granted_an_hour_and_never_saved_up() -> None:
    settings = KvSettings(saved_hourly_bytes=40 * MB, save_after_s=0)
    policy = SavePolicy(settings, 0.0)
    three = [candidate(n) for n in range(3)]
    assert len(policy.decide(three, [], 0.0).save) == 2
    assert len(policy.decide(three, [], HOUR_S / 2 - 1).save) == 0
    assert len(policy.decide(three, [], HOUR_S / 2).save) == 1
    assert len(policy.decide(three, [], 100 * HOUR_S).save) == 2


def test_what_an_earlier_process_wrote_counts() -> None:
    settings = KvSettings(saved_hourly_bytes=40 * MB, save_after_s=0)
    policy = SavePolicy(settings, 5.0, written_bytes=100 * MB)
    assert policy.decide([candidate()], [], 5.0).save == ()
    assert len(policy.decide([candidate()], [], 5.0 + HOUR_S / 2).save) == 1


def test_storage_that_refused_is_left_alone_for_a_while_and_tried_once_more_at_a_stop() -> None:
    policy = SavePolicy(SETTINGS, 0.0)
    policy.refused(100.0)
    assert policy.decide([candidate()], [], 100.0 + RETRY_S / 2).save == ()
    assert len(policy.decide([candidate()], [], 100.0 + RETRY_S / 2, at_stop=True).save) == 1
    assert len(policy.decide([candidate()], [], 100.0 + RETRY_S).save) == 1
    policy.refused(5000.0)
    assert len(policy.decide([candidate()], [], 1000.0).save) == 1  # a clock that went back must not lock it


times = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20)


@given(times=times, sizes=st.lists(st.integers(1, 60 * MB), min_size=1, max_size=6))
def test_whatever_the_clock_does_no_plan_exceeds_its_bounds(times: list[float], sizes: list[int]) -> None:
    settings = KvSettings(saved_max_bytes=100 * MB, saved_hourly_bytes=70 * MB, save_after_s=0)
    policy = SavePolicy(settings, times[0])
    disk: dict[str, int] = {}
    written, granted = 0, float(settings.saved_hourly_bytes)
    previous_s = times[0]
    for turn, now_s in enumerate(times):
        some = [candidate(n, size_bytes=size) for n, size in enumerate(sizes)]
        plan = policy.decide(some, [copy(name, size) for name, size in disk.items()], now_s)
        for name in plan.delete:
            del disk[name]
        for chosen in plan.save:
            disk[f"{turn}-{chosen.slot}"] = chosen.size_bytes
            written += chosen.size_bytes
        assert sum(disk.values()) <= settings.saved_max_bytes
        # A leap of the clock grants an hour's bytes at most, going backwards grants none.
        granted += min(max(0.0, now_s - previous_s), HOUR_S) / HOUR_S * settings.saved_hourly_bytes
        previous_s = now_s
        assert written <= granted + 1


def saved(name: str, ids: list[int], owner: str = "me") -> SavedSlot:
    return SavedSlot(
        saved_id=name,
        scope=scope(owner),
        ids=tuple(ids),
        conversation="",
        size_bytes=1,
        saved_wall_s=0.0,
        saved_at_s=0.0,
        boot_id="",
        serial=1,
    )


def scope(owner: str) -> Scope:
    return Scope(model="m", model_hash="h", layout_id="l", plan="", adapter="", owner=owner)


def test_the_copy_with_most_of_a_conversation_is_named_and_others_conversations_never() -> None:
    copies = [saved("short", [1, 2]), saved("longer", [1, 2, 3, 9]), saved("theirs", [1, 2, 3, 4], "you")]
    assert covering(scope("me"), [1, 2, 3, 4], copies) == Coverage(tokens=3, saved_id="longer", contained=False)
    assert covering(scope("me"), [1, 2, 5], copies) == Coverage(tokens=2, saved_id="short", contained=True)
    assert covering(scope("me"), [7], copies) == Coverage()
    assert covering(scope("you"), [1, 2, 3, 4, 5], copies).saved_id == "theirs"
