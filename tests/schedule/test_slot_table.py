import msgspec
import pytest
from slot_table_bench import SCOPE, SYSTEM, clean, contents, placed, served, table, text, wanted

from magnitude.schedule.slot_table import SlotTable
from magnitude.schedule.slot_terms import Known, Miss, PagedTensor

# --- reuse ---


def test_the_next_turn_of_a_conversation_goes_on_in_its_slot_and_computes_only_what_is_new() -> None:
    kv = table()
    first = SYSTEM + text(0, 30)
    one = served(kv, first, text(50, 20))
    two = served(kv, first + text(50, 20) + text(80, 25), text(200, 10))
    assert (one.valid_tokens, one.miss) == (0, Miss("cold", 0))
    assert (two.slot, two.valid_tokens, two.copy_from, two.miss) == (one.slot, len(first) + 20, None, None)
    assert two.holds == contents(first + text(50, 20))
    assert two.conversation == one.conversation


def test_an_answer_that_comes_back_rendered_differently_is_cut_off_in_place() -> None:
    kv = table()
    first = SYSTEM + text(0, 30)
    one = served(kv, first, text(50, 100))
    two = served(kv, first + text(300, 100), [])
    assert (two.slot, two.copy_from, two.valid_tokens) == (one.slot, None, len(first))
    assert two.miss == Miss("differs", len(first))


def test_another_conversation_with_the_same_system_prompt_copies_it_and_leaves_the_first_whole() -> None:
    kv = table()
    one = served(kv, SYSTEM + text(0, 300), text(400, 100))
    two = served(kv, SYSTEM + text(5000, 300), text(6000, 100))
    assert two.slot != one.slot
    assert (two.copy_from, two.valid_tokens, two.miss) == (one.slot, 800, Miss("differs", 800))
    assert two.holds == contents(SYSTEM + text(0, 300) + text(400, 100))
    assert two.conversation != one.conversation
    again = served(kv, SYSTEM + text(0, 300) + text(400, 100) + [7], [])
    assert (again.slot, again.valid_tokens) == (one.slot, 1200)


def test_a_bare_system_prompt_is_taken_over_in_place_because_nothing_is_lost() -> None:
    kv = table()
    one = served(kv, SYSTEM, [])
    two = served(kv, SYSTEM + text(0, 40), [])
    assert (two.slot, two.copy_from, two.valid_tokens) == (one.slot, None, 800)


def test_without_another_slot_the_beginning_is_reused_in_place_even_if_the_rest_is_lost() -> None:
    kv = table(slots=1)
    served(kv, SYSTEM + text(0, 300), [])
    two = served(kv, SYSTEM + text(5000, 300), [])
    assert (two.slot, two.copy_from, two.valid_tokens) == (0, None, 800)
    three = served(kv, SYSTEM + text(0, 300), [])
    assert three.miss == Miss("evicted", 800)


def test_the_same_prompt_again_leaves_one_token_to_compute() -> None:
    kv = table()
    served(kv, SYSTEM, text(0, 5))
    again = served(kv, SYSTEM, [])
    assert (again.valid_tokens, again.miss) == (len(SYSTEM) - 1, None)


def test_a_running_prompt_serves_others_up_to_what_is_reported_computed() -> None:
    kv = table()
    first = wanted(SYSTEM + text(0, 10))
    source = placed(kv, first)
    early = placed(kv, wanted(SYSTEM + text(100, 10)))
    assert early.valid_tokens == 0
    kv.progressed(first.request_id, 512)
    late = placed(kv, wanted(SYSTEM + text(200, 10)))
    assert (late.copy_from, late.valid_tokens, late.holds) == (source.slot, 512, None)
    assert late.miss == Miss("cold", 512)


def test_what_went_on_in_place_serves_others_at_once() -> None:
    kv = table()
    one = served(kv, SYSTEM, [])
    going_on = placed(kv, wanted(SYSTEM + text(0, 10)))
    other = placed(kv, wanted(SYSTEM + text(100, 10)))
    assert (going_on.slot, other.copy_from, other.valid_tokens) == (one.slot, one.slot, 800)


def test_beginnings_as_short_as_a_chat_templates_opening_are_not_reused() -> None:
    kv = table()
    served(kv, text(0, 100), [])
    other = served(kv, text(0, 5) + text(500, 50), [])
    assert (other.valid_tokens, other.copy_from, other.miss) == (0, None, Miss("differs", 5))


def test_a_conversation_named_by_the_client_is_cut_where_it_differs_and_others_are_copied() -> None:
    kv = table()
    served(kv, SYSTEM + text(0, 200), [], conversation="a")
    edited = served(kv, SYSTEM + text(0, 100) + text(900, 50), [], conversation="a")
    assert (edited.slot, edited.copy_from, edited.conversation) == (0, None, "a")
    other = served(kv, SYSTEM + text(0, 100) + text(900, 50) + [1], [], conversation="b")
    assert other.conversation == "b"


def test_peek_tells_a_later_turn_from_a_new_conversation() -> None:
    kv = table()
    one = served(kv, SYSTEM + text(0, 30), text(50, 20))
    assert kv.peek(SCOPE, SYSTEM + text(0, 30) + text(50, 9) + [1]) == Known(839, one.conversation)
    assert kv.peek(SCOPE, SYSTEM + text(700, 30)) == Known(800, "")
    assert kv.peek(SCOPE, text(0, 30)) == Known(0, "")


# --- privacy and scopes ---


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_hash": "x"}, "other_model"),
        ({"layout_id": "x"}, "other_layout"),
        ({"plan": "x"}, "other_layout"),
        ({"adapter": "x"}, "other_adapter"),
        ({"adapter": "x", "model_hash": "hash with x"}, "other_adapter"),
        ({"owner": "bob"}, "other_key"),
        ({"owner": "bob", "model_hash": "x"}, "other_model"),
    ],
)
def test_nothing_is_reused_from_another_scope_and_the_figures_say_which_kind(
    changed: dict[str, str], reason: str
) -> None:
    kv = table()
    served(kv, SYSTEM, [])
    other = msgspec.structs.replace(SCOPE, **changed)
    assert kv.peek(other, SYSTEM) == Known(0, "")
    placement = served(kv, SYSTEM, [], scope=other)
    assert (placement.valid_tokens, placement.copy_from, placement.holds) == (0, None, None)
    assert placement.miss is not None
    assert placement.miss.reason == reason
    assert kv.figures().misses == {"cold": 1, reason: 1}


def test_shared_prefixes_cross_keys_but_a_conversation_stays_its_owners() -> None:
    kv = table(share=True)
    served(kv, SYSTEM + text(0, 20), [])
    bob = msgspec.structs.replace(SCOPE, owner="bob")
    assert kv.peek(bob, SYSTEM + text(0, 20) + [1]) == Known(820, "")
    placement = served(kv, SYSTEM + text(0, 20) + [1], [], scope=bob)
    assert placement.valid_tokens == 820


def test_a_request_that_is_not_to_be_kept_leaves_nothing_and_takes_nothing_from_others() -> None:
    kv = table()
    served(kv, SYSTEM + text(0, 200), [])
    secret = served(kv, SYSTEM + text(700, 200), text(900, 10), keep=False)
    assert (secret.copy_from, secret.valid_tokens) == (0, 800)
    assert kv.take_cleanups() == [secret.slot]
    assert kv.peek(SCOPE, SYSTEM + text(700, 200)).tokens == 800
    assert kv.peek(SCOPE, SYSTEM + text(0, 200) + [1]).tokens == 1000
    assert served(kv, SYSTEM + text(700, 250), [], keep=False).miss == Miss("off", 800)


def test_a_running_request_that_is_not_to_be_kept_is_no_source() -> None:
    kv = table()
    secret = wanted(SYSTEM, keep=False)
    placed(kv, secret)
    kv.progressed(secret.request_id, 800)
    assert placed(kv, wanted([*SYSTEM, 1])).valid_tokens == 0


def test_a_request_may_ask_for_everything_to_be_computed() -> None:
    kv = table()
    served(kv, SYSTEM, [])
    assert served(kv, [*SYSTEM, 1], [], reuse=False).miss == Miss("off", 0)


def test_forgetting_an_owner_drops_what_is_idle_now_and_what_runs_at_its_end() -> None:
    kv = table()
    bob = msgspec.structs.replace(SCOPE, owner="bob")
    served(kv, SYSTEM, [])
    served(kv, SYSTEM, [], scope=bob)
    running = wanted(text(0, 100))
    slot = placed(kv, running).slot
    kv.progressed(running.request_id, 100)
    kv.add_saved("s1", SCOPE, text(2000, 300), 3000)
    forgotten = kv.forget("ann")
    assert (forgotten.slots, forgotten.saved_ids) == (1, ["s1"])
    for ids in (SYSTEM, text(0, 100), text(2000, 300)):
        assert kv.peek(SCOPE, [*ids, 1]).tokens == 0
    assert kv.peek(bob, [*SYSTEM, 1]).tokens == 800
    kv.finished(running.request_id, text(0, 120), 1.0)
    assert slot in kv.take_cleanups()
    assert served(kv, text(0, 100), []).miss == Miss("cold", 0)


# --- eviction and memory ---


def test_the_cheapest_to_compute_again_is_evicted_first_among_equally_recent_ones() -> None:
    kv = table(slots=3)
    served(kv, text(0, 1000), [])
    short = served(kv, text(2000, 100), [])
    served(kv, text(4000, 1000), [])
    assert served(kv, text(6000, 100), []).slot == short.slot


def test_the_longest_unused_is_evicted_first_among_equally_long_ones() -> None:
    kv = table(slots=3)
    for number in range(3):
        served(kv, text(2000 * number, 1000), [], now_s=100.0 * number)
    assert served(kv, text(9000, 100), [], now_s=300.0).slot == 0


def test_what_another_slot_holds_as_well_is_no_loss() -> None:
    kv = table(slots=3)
    served(kv, text(0, 1000), [], now_s=0.0)
    served(kv, SYSTEM + text(5000, 20), [], now_s=100.0)
    copy = served(kv, SYSTEM + text(6000, 10), [], now_s=100.0)
    assert served(kv, text(9000, 100), [], now_s=100.0).slot == copy.slot


def test_a_conversation_used_often_outlives_one_used_once() -> None:
    kv = table(slots=2)
    ids = text(0, 500)
    for turn in range(6):
        served(kv, ids, [], now_s=float(turn))
        ids += text(1000 + 10 * turn, 10)
    once = served(kv, text(5000, 560), [], now_s=10.0)
    assert served(kv, text(9000, 100), [], now_s=11.0).slot == once.slot


def test_memory_for_a_request_is_made_by_evicting_and_waited_for_until_it_is_given_back() -> None:
    kv = table(slots=4, budget_tokens=2000)
    served(kv, text(0, 600), [], now_s=0.0)
    served(kv, text(1000, 600), [], now_s=50.0)
    running = wanted(text(2000, 300), max_new_tokens=300)
    placed(kv, running, 60.0)
    big = wanted(text(4000, 1200), max_new_tokens=100)
    assert kv.place(big, 61.0) is None
    assert kv.place(big, 61.0) is None
    (cleaning,) = kv.take_cleanups()
    assert kv.figures().evictions == 1
    kv.cleaned(cleaning)
    assert kv.place(big, 62.0) is not None
    assert kv.figures().resident_bytes <= kv.figures().budget_bytes


def test_a_victims_slot_is_taken_over_as_it_is_when_that_is_memory_enough() -> None:
    kv = table(slots=4, budget_tokens=1000)
    served(kv, text(0, 600), [])
    assert placed(kv, wanted(text(4000, 800))).slot == 0
    assert kv.take_cleanups() == []


def test_a_request_that_cannot_fit_beside_running_ones_evicts_nothing() -> None:
    kv = table(slots=4, budget_tokens=1000)
    served(kv, text(0, 300), [])
    placed(kv, wanted(text(1000, 500), max_new_tokens=100))
    assert kv.place(wanted(text(3000, 500), max_new_tokens=0), 0.0) is None
    assert (kv.take_cleanups(), kv.figures().idle_slots) == ([], 1)


def test_a_request_larger_than_the_budget_runs_alone() -> None:
    kv = table(slots=4, budget_tokens=500)
    served(kv, text(0, 300), [])
    big = wanted(text(1000, 900))
    clean(kv)
    placement = kv.place(big, 0.0)
    if placement is None:
        clean(kv)
        placement = placed(kv, big)
    assert kv.place(wanted(text(5000, 20)), 0.0) is None
    kv.finished(big.request_id, (), 0.0)
    clean(kv)
    assert kv.place(wanted(text(5000, 20)), 0.0) is not None


def test_a_smaller_budget_evicts_idle_slots_at_once() -> None:
    kv = table()
    for number in range(4):
        served(kv, text(2000 * number, 500), [], now_s=float(number))
    kv.set_budget(12_000, 4.0)
    assert sorted(kv.take_cleanups()) == [0, 1]


def test_when_the_model_leaves_memory_its_slots_are_emptied_and_its_saved_copies_stay() -> None:
    kv = table()
    ids = text(0, 300)
    saving = served(kv, text(5000, 300), []).slot
    kv.begin_save(saving)
    idle = served(kv, SYSTEM, []).slot
    kv.add_saved("s1", SCOPE, ids, 100)
    kv.evict_all()
    assert kv.take_cleanups() == [idle]
    assert kv.save_done(saving, "torn", free=True) == ["torn"]
    assert kv.take_cleanups() == [saving]
    assert [kv.peek(SCOPE, [*held, 1]).tokens for held in (SYSTEM, text(5000, 300), ids)] == [0, 0, 300]


def test_memory_is_counted_in_whole_pages() -> None:
    kv = SlotTable(
        slots=2,
        max_len=512,
        tensors=(PagedTensor(bytes_per_token=10, page_tokens=64),),
        budget_bytes=100_000,
        share_prefixes=False,
    )
    request = wanted(text(0, 60), max_new_tokens=5)
    placed(kv, request)
    assert kv.figures().resident_bytes == 1280


def test_tensors_of_different_width_fill_their_pages_at_different_lengths() -> None:
    keys, scales = PagedTensor(bytes_per_token=64, page_tokens=64), PagedTensor(bytes_per_token=4, page_tokens=1024)
    kv = SlotTable(slots=1, max_len=4096, tensors=(keys, scales), budget_bytes=1_000_000, share_prefixes=False)
    placed(kv, wanted(text(0, 60), max_new_tokens=5))
    assert kv.figures().resident_bytes == 128 * 64 + 1024 * 4


def test_a_full_slot_counts_no_more_than_it_has_positions() -> None:
    kv = SlotTable(
        slots=2,
        max_len=100,
        tensors=(PagedTensor(bytes_per_token=10, page_tokens=64),),
        budget_bytes=2000,
        share_prefixes=False,
    )
    placed(kv, wanted(text(0, 60)))
    placed(kv, wanted(text(100, 60)))
    assert kv.figures().resident_bytes == 2000


def test_a_slot_is_not_given_back_while_the_engine_may_still_copy_from_it() -> None:
    kv = table(slots=2)
    served(kv, SYSTEM + text(0, 300), [])
    copying = wanted(SYSTEM + text(3000, 10))
    assert placed(kv, copying).copy_from == 0
    kv.forget("ann")
    assert kv.take_cleanups() == []
    kv.progressed(copying.request_id, 128)
    assert kv.take_cleanups() == [0]
    assert kv.take_cleanups() == []


def test_a_slot_is_freed_once() -> None:
    kv = table(slots=1)
    request = wanted(text(0, 100))
    placed(kv, request)
    kv.finished(request.request_id, (), 0.0)
    kv.finished(request.request_id, text(0, 100), 0.0)
    assert kv.place(wanted(text(0, 100)), 0.0) is None
    assert kv.take_cleanups() == [0]
    kv.cleaned(0)
    with pytest.raises(ValueError, match="not handed out"):
        kv.cleaned(0)


def test_a_request_gets_one_slot() -> None:
    kv = table()
    request = wanted(text(0, 100))
    placed(kv, request)
    with pytest.raises(ValueError, match="already"):
        kv.place(request, 0.0)


def test_a_slot_that_holds_something_else_than_recorded_is_not_used_again() -> None:
    kv = table()
    idle = served(kv, SYSTEM, []).slot
    kv.spoiled(idle)
    assert kv.peek(SCOPE, [*SYSTEM, 1]).tokens == 0
    assert kv.take_cleanups() == [idle]
    request = wanted(SYSTEM)
    running = placed(kv, request).slot
    kv.progressed(request.request_id, 800)
    kv.spoiled(running)
    assert kv.peek(SCOPE, [*SYSTEM, 1]).tokens == 0
    kv.progressed(request.request_id, 128)
    assert kv.peek(SCOPE, [*SYSTEM, 1]).tokens == 128


# --- saved copies ---


def test_only_what_is_idle_and_long_enough_is_offered_for_saving_the_longest_idle_first() -> None:
    kv = table()
    served(kv, text(0, 300), [], now_s=10.0)
    served(kv, text(1000, 400), [], now_s=0.0)
    served(kv, text(2000, 50), [], now_s=0.0)
    served(kv, text(3000, 300), [], now_s=99.0)
    offered = kv.idle(100.0, 60.0, 256)
    assert [(slot.slot, len(slot.ids), slot.idle_s) for slot in offered] == [(1, 400, 100.0), (0, 300, 90.0)]
    assert offered[0].contents == contents(text(1000, 400))
    assert offered[0].scope == SCOPE


def test_a_slot_that_is_being_saved_is_copied_from_but_neither_evicted_nor_written_to() -> None:
    kv = table(slots=2)
    ids = text(0, 400)
    saving = served(kv, ids, []).slot
    kv.begin_save(saving)
    request = wanted([*ids, 1])
    copy = placed(kv, request)
    assert (copy.copy_from, copy.valid_tokens) == (saving, 400)
    assert kv.place(wanted(text(5000, 100)), 0.0) is None
    with pytest.raises(ValueError, match="cannot be saved"):
        kv.begin_save(saving)
    kv.save_done(saving, None, free=False)
    assert placed(kv, wanted(text(5000, 100))).slot == saving


def test_a_saved_and_freed_conversation_is_restored_for_its_next_turn() -> None:
    kv = table()
    ids = SYSTEM + text(0, 400)
    one = served(kv, ids, text(500, 50))
    kv.begin_save(one.slot)
    assert kv.save_done(one.slot, "s1", free=True, size_bytes=12_000) == []
    clean(kv)
    two = placed(kv, wanted(ids + text(500, 50) + text(700, 20)))
    assert (two.saved, two.valid_tokens, two.copy_from, two.miss) == ("s1", 1250, None, None)
    assert two.holds == contents(ids + text(500, 50))
    assert two.conversation == one.conversation
    assert kv.figures().restored_tokens == 1250


def test_a_saved_copy_that_takes_longer_to_read_than_to_compute_is_left_alone() -> None:
    kv = table()
    kv.set_rates(prefill_tokens_per_s=1000.0, restore_bytes_per_s=1e6)
    kv.add_saved("s1", SCOPE, SYSTEM, 10_000_000)
    slow = served(kv, [*SYSTEM, 1], [])
    assert (slow.saved, slow.valid_tokens, slow.miss) == (None, 0, Miss("evicted", 0))


def test_a_saved_copy_is_read_only_for_what_memory_does_not_have() -> None:
    kv = table()
    kv.set_rates(prefill_tokens_per_s=100.0, restore_bytes_per_s=1e6)
    served(kv, SYSTEM, [])
    kv.add_saved("longer", SCOPE, SYSTEM + text(0, 500), 1_000_000)
    assert served(kv, SYSTEM + text(0, 510), [], conversation="x").saved == "longer"
    assert served(kv, SYSTEM + text(0, 50) + [1], [], conversation="y").saved is None


def test_no_file_is_read_into_a_slot_that_the_engine_may_still_copy_from() -> None:
    kv = table(slots=2)
    served(kv, SYSTEM + text(0, 300), [])
    copying = wanted(SYSTEM + text(3000, 10))
    assert placed(kv, copying).copy_from == 0
    kv.add_saved("s1", SCOPE, text(5000, 3000), 100)
    assert placed(kv, wanted(text(5000, 3010))).saved is None


def test_a_saved_copy_that_holds_an_older_one_whole_supersedes_it() -> None:
    kv = table()
    kv.add_saved("old", SCOPE, SYSTEM, 100)
    kv.add_saved("other", SCOPE, text(0, 500), 100)
    assert kv.add_saved("new", SCOPE, SYSTEM + text(0, 10), 100) == ["old"]


def test_a_slot_restored_and_unchanged_is_offered_with_its_saved_copy() -> None:
    kv = table()
    slot = served(kv, SYSTEM, []).slot
    kv.begin_save(slot)
    kv.save_done(slot, "s1", free=False, size_bytes=100)
    assert [idle.saved_id for idle in kv.idle(100.0, 1.0, 1)] == ["s1"]
    kv.drop_saved("s1")
    assert [idle.saved_id for idle in kv.idle(100.0, 1.0, 1)] == [None]


def test_what_is_forgotten_while_it_is_saved_is_dropped_and_its_copy_is_to_be_deleted() -> None:
    kv = table()
    slot = served(kv, SYSTEM, []).slot
    kv.begin_save(slot)
    assert kv.forget("ann").slots == 1
    assert kv.peek(SCOPE, [*SYSTEM, 1]).tokens == 0
    assert kv.save_done(slot, "s1", free=False, size_bytes=100) == ["s1"]
    assert kv.take_cleanups() == [slot]
    assert kv.peek(SCOPE, [*SYSTEM, 1]).tokens == 0


def test_figures_add_up() -> None:
    kv = table()
    served(kv, SYSTEM + text(0, 100), [])
    served(kv, SYSTEM + text(500, 100), [])
    figures = kv.figures()
    assert (figures.hits, figures.misses) == (1, {"cold": 1, "differs": 1})
    assert (figures.reused_tokens, figures.copied_tokens) == (800, 800)
    assert (figures.resident_tokens, figures.resident_bytes) == (1800, 18_000)
    assert (figures.idle_slots, figures.free_slots, figures.running_slots) == (2, 2, 0)
