"""Batches of encoder texts in simulated time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.encoder_buckets import bucket_tokens
from magnitude.schedule.encode_batching import (
    BatchDone,
    BatchFailed,
    CancelBatch,
    Complete,
    Effect,
    EncodeBatching,
    EncodeJob,
    EncodeLimits,
    EngineLoad,
    Fail,
    Part,
    Refuse,
    RunBatch,
    Tick,
    Withdraw,
)

LIMITS = EncodeLimits(max_batch=4, max_batch_tokens=256, wait_s=0.005, in_flight=2, max_queue=4)


def job(request_id: int, *lengths: int, model: str = "m") -> EncodeJob:
    return EncodeJob(request_id, model, lengths, 256)


def batches(effects: list[Effect]) -> list[RunBatch]:
    return [effect for effect in effects if isinstance(effect, RunBatch)]


def busy(limits: EncodeLimits = LIMITS) -> EncodeBatching:
    batching = EncodeBatching(limits)
    batching.apply(EngineLoad(True), 0.0)
    return batching


def test_an_idle_engine_gets_a_text_at_once():
    batching = EncodeBatching(LIMITS)
    (batch,) = batches(batching.apply(job(1, 10), 0.0))
    assert batch.parts == (Part(1, (0,)),)
    assert batch.padded_tokens == 16
    assert batching.next_wake_s() is None


def test_while_the_engine_is_busy_texts_of_several_requests_wait_for_each_other_until_the_time_is_up():
    batching = busy()
    assert batching.apply(job(1, 10), 0.0) == []
    assert batching.apply(job(2, 12), 0.004) == []
    assert batching.next_wake_s() == 0.005
    (batch,) = batches(batching.apply(Tick(), 0.005))
    assert batch.parts == (Part(1, (0,)), Part(2, (0,)))


def test_a_full_batch_does_not_wait():
    by_count = busy()
    for request_id in (1, 2, 3):
        assert by_count.apply(job(request_id, 10), 0.0) == []
    assert batches(by_count.apply(job(4, 10), 0.0))[0].rows == 4
    by_tokens = busy()
    assert by_tokens.apply(job(1, 120), 0.0) == []
    assert batches(by_tokens.apply(job(2, 128), 0.0))[0].padded_tokens == 128


def test_waiting_texts_go_as_soon_as_the_engine_has_nothing_else():
    batching = busy()
    batching.apply(job(1, 10), 0.0)
    assert batches(batching.apply(EngineLoad(False), 0.001))
    running = EncodeBatching(LIMITS)
    (first,) = batches(running.apply(job(1, 10), 0.0))
    assert running.apply(job(2, 10), 0.001) == []
    effects = running.apply(BatchDone(first.batch_id, 0.001), 0.002)
    assert batches(effects)[0].parts == (Part(2, (0,)),)


def test_the_more_the_engine_has_to_do_the_fuller_the_batches():
    batching = EncodeBatching(LIMITS)
    first = batches(batching.apply(job(1, 10), 0.0))[0]
    assert batches(batching.apply(job(2, 10), 0.0) + batching.apply(Tick(), 0.01))[0].rows == 1
    for request_id in (3, 4, 5):  # both places are taken
        assert batching.apply(job(request_id, 10), 0.02) == []
    assert batching.apply(Tick(), 0.1) == []
    assert batches(batching.apply(BatchDone(first.batch_id, 0.1), 0.1))[0].rows == 3


def test_a_large_request_does_not_hold_up_a_small_one_and_is_not_starved():
    batching = EncodeBatching(LIMITS)
    running = batches(batching.apply(job(1, *[100] * 40), 0.0) + batching.apply(Tick(), 0.01))
    assert [batch.rows for batch in running] == [2, 2]
    batching.apply(job(2, 20), 0.02)
    effects = batching.apply(BatchDone(running[0].batch_id, 0.1), 0.1)
    assert [part.request_id for batch in batches(effects) for part in batch.parts] == [2]
    effects += batching.apply(BatchDone(running[1].batch_id, 0.1), 0.2)
    assert {part.request_id for batch in batches(effects) for part in batch.parts} == {1, 2}
    # A stream of small requests leaves the large one every other batch.
    served = []
    now_s, flying = 0.2, batches(effects)
    for request_id in range(3, 23):
        batching.apply(job(request_id, 20), now_s)
        now_s += 0.1
        effects = batching.apply(BatchDone(flying.pop(0).batch_id, 0.1), now_s)
        flying += batches(effects)
        served += [part.request_id for batch in batches(effects) for part in batch.parts]
    assert served.count(1) == 10


def test_urgent_requests_go_first_and_then_clients_that_have_got_least():
    def first_of(*jobs: EncodeJob) -> list[int]:
        """Whose texts the batches have, after the first two, while one place comes free at a time."""
        batching = EncodeBatching(EncodeLimits(max_batch=1, in_flight=1))
        batching.apply(EngineLoad(True), 0.0)
        effects = [effect for one in jobs for effect in batching.apply(one, 0.0)]
        order = []
        for number in range(8):
            for batch in batches(effects):
                order.append(batch.parts[0].request_id)
                effects = batching.apply(BatchDone(batch.batch_id, 0.01), float(number))
        return order

    large = EncodeJob(1, "m", (10,) * 6, 256, client="a")
    # Every other batch is the oldest request's, which is the large one.
    assert first_of(large, EncodeJob(2, "m", (10,), 256, client="a"), EncodeJob(3, "m", (10,), 256, client="b")) == [
        *(1, 3, 1, 2, 1, 1, 1, 1)
    ]
    background = EncodeJob(2, "m", (10,), 256, "background", client="b")
    assert first_of(large, background, EncodeJob(3, "m", (10,), 256, client="a")) == [1, 3, 1, 1, 1, 1, 1, 2]


def test_long_and_short_texts_are_not_padded_together_beyond_the_limit():
    batching = busy()
    batching.apply(job(1, 10), 0.0)
    batching.apply(job(2, 60), 0.0)
    batching.apply(job(3, 50), 0.0)
    found = batches(batching.apply(Tick(), 0.005))
    assert [{part.request_id for part in batch.parts} for batch in found] == [{1}, {2, 3}]


def test_models_do_not_share_batches_and_the_one_that_waited_longest_comes_first():
    batching = busy()
    batching.apply(job(1, 10, model="a"), 0.0)
    batching.apply(job(2, 10, model="b"), 0.001)
    batching.apply(job(3, 10, model="a"), 0.002)
    found = batches(batching.apply(Tick(), 0.01))
    assert [(batch.model, batch.rows) for batch in found] == [("a", 2), ("b", 1)]


def test_each_request_gets_its_own_times():
    batching = busy()
    batching.apply(job(1, 10), 0.0)
    batching.apply(job(2, 10), 0.004)
    (batch,) = batches(batching.apply(Tick(), 0.005))
    effects = batching.apply(BatchDone(batch.batch_id, 0.020), 0.030)
    times = {e.request_id: (round(e.queue_s, 6), e.run_s) for e in effects if isinstance(e, Complete)}
    assert times == {1: (0.010, 0.020), 2: (0.006, 0.020)}


def test_a_withdrawn_request_leaves_its_batch():
    batching = busy()
    batching.apply(job(1, 10), 0.0)
    batching.apply(job(2, 10), 0.0)
    assert batching.apply(Withdraw(1), 0.001) == []
    (batch,) = batches(batching.apply(Tick(), 0.005))
    assert batch.parts == (Part(2, (0,)),)
    assert batching.apply(Withdraw(2), 0.006) == [CancelBatch(batch.batch_id)]
    assert batching.apply(BatchFailed(batch.batch_id, retry_alone=True), 0.007) == []
    assert batching.in_flight == 0


def test_a_batch_that_somebody_still_wants_is_not_cancelled():
    batching = busy()
    batching.apply(job(1, 10), 0.0)
    batching.apply(job(2, 10), 0.0)
    (batch,) = batches(batching.apply(Tick(), 0.005))
    assert batching.apply(Withdraw(1), 0.006) == []
    effects = batching.apply(BatchDone(batch.batch_id, 0.01), 0.02)
    assert [e.request_id for e in effects if isinstance(e, Complete)] == [2]


def test_a_text_that_breaks_a_batch_fails_only_its_own_request():
    batching = EncodeBatching(LIMITS)
    batching.apply(EngineLoad(True), 0.0)
    for request_id in (1, 2):
        batching.apply(job(request_id, 10), 0.0)
    (batch,) = batches(batching.apply(Tick(), 0.005))
    again = batches(batching.apply(BatchFailed(batch.batch_id, retry_alone=True), 0.01))
    assert [b.parts for b in again] == [(Part(1, (0,)),), (Part(2, (0,)),)]
    effects = batching.apply(BatchFailed(again[0].batch_id, retry_alone=True), 0.02)
    assert effects == [Fail(1, again[0].batch_id)]
    effects = batching.apply(BatchDone(again[1].batch_id, 0.01), 0.03)
    assert [e.request_id for e in effects if isinstance(e, Complete)] == [2]


def test_a_lost_engine_fails_every_request_of_the_batch_and_what_is_left_of_it():
    batching = EncodeBatching(LIMITS)
    first, second = batches(batching.apply(job(1, *[100] * 9), 0.0))
    effects = batching.apply(BatchFailed(first.batch_id, retry_alone=False), 0.01)
    assert effects == [Fail(1, first.batch_id), CancelBatch(second.batch_id)]
    assert batching.apply(BatchFailed(second.batch_id, retry_alone=False), 0.01) == []
    assert batching.waiting == batching.in_flight == 0


def test_a_full_queue_refuses_and_says_how_many_wait():
    batching = EncodeBatching(LIMITS)
    effects = [effect for n in range(1, 20) for effect in batching.apply(job(n, 200), 0.0)]
    refused = [effect for effect in effects if isinstance(effect, Refuse)]
    assert len(batches(effects)) == 2
    assert refused[0] == Refuse(7, 4)
    assert len(refused) == 19 - 2 - 4


@given(
    requests=st.lists(st.lists(st.integers(1, 256), max_size=30), max_size=12),
    order=st.randoms(use_true_random=False),
    failing=st.booleans(),
)
def test_every_text_is_computed_exactly_once_within_the_limits_and_every_request_ends(requests, order, failing):
    limits = EncodeLimits(max_batch=4, max_batch_tokens=256, in_flight=2, max_queue=99)
    batching = EncodeBatching(limits)
    coming = list(enumerate(requests))
    flying: list[RunBatch] = []
    computed: set[tuple[int, int]] = set()
    ended: list[int] = []
    now_s = 0.0
    for _ in range(2000):
        now_s += 0.003
        if coming and (order.random() < 0.5 or not flying):
            request_id, lengths = coming.pop(0)
            effects = batching.apply(EncodeJob(request_id, "m", tuple(lengths), 256), now_s)
        elif flying:
            batch = flying.pop(order.randrange(len(flying)))
            if failing and len(batch.parts) > 1 and order.random() < 0.3:
                effects = batching.apply(BatchFailed(batch.batch_id, retry_alone=True), now_s)
            else:
                rows = {(part.request_id, index) for part in batch.parts for index in part.indices}
                assert len(rows) == batch.rows
                assert not rows & computed
                computed |= rows
                effects = batching.apply(BatchDone(batch.batch_id, 0.002), now_s)
        else:
            effects = batching.apply(Tick(), now_s)
        flying += batches(effects)
        ended += [effect.request_id for effect in effects if isinstance(effect, Complete)]
        assert len(flying) <= 2
        for batch in batches(effects):
            lengths = [requests[part.request_id][index] for part in batch.parts for index in part.indices]
            cells = batch.rows * batch.padded_tokens
            assert batch.rows <= 4
            assert cells <= 256 or batch.rows == 1
            assert max(lengths) <= batch.padded_tokens
            own = sum(bucket_tokens(length, 256) for length in lengths)
            assert cells - own <= limits.max_padding * cells
        if not coming and not flying and not batching.waiting:
            break
    assert computed == {(n, i) for n, lengths in enumerate(requests) for i in range(len(lengths))}
    assert sorted(ended) == list(range(len(requests)))
