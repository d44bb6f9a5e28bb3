"""The running batch over a tiny decoder, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import KvFile
from tiny_decoder import VOCAB, write_decoder

from magnitude.engine.batch import RunningBatch
from magnitude.engine.decoder import Decoder, Wanted
from magnitude.engine.generation import Generation, take_slot
from magnitude.engine.kv import KvMemory
from magnitude.engine.message import Message
from magnitude.engine.protocol import Finished, Generate, SamplerSettings, SlotContents, Tokens
from magnitude.engine.run_costs import SMALLEST_PIECE
from magnitude.engine.sampling import F32, Sampler
from magnitude.engine.session_messages import UseSessions
from magnitude.engine.session_set import SessionSet
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import open_session
from magnitude.engine.slot_header import HASH_OF_NOTHING, extend_hash
from magnitude.errors import EngineError
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]
RNG = np.random.default_rng(7)
PROMPTS = [[int(i) for i in RNG.integers(0, 250, n)] for n in (5, 23, 40, 11)]
GREEDY = SamplerSettings(temperature=0.0)


class House:
    """A batch with its decoder and KV, and what its members said."""

    def __init__(self, model: ModelDescription, file: KvFile, max_batch: int = 4) -> None:
        self.model = model
        self.kv = file.keep(KvMemory(file.fd, file.layout))
        session = open_session(Path(model.folder) / model.graph_file, 1)
        self.decoder = file.keep(Decoder(model, session, self.kv, max_batch=max_batch))
        self.sessions = SessionSet(session)
        self.batch = RunningBatch(self.decoder, max_batch, sessions=self.sessions)
        self.ids: dict[int, list[int]] = {}
        self.ends: dict[int, Finished | Exception] = {}

    def open(self, request_id: int, prompt: list[int], slot: int, **fields: Any) -> Generation:
        defaults: dict[str, Any] = {"max_new_tokens": 12, "sampler": GREEDY, "prefill_chunk": 8}
        request = Generate(request_id=request_id, model="tiny", slot=slot, prompt=prompt, **(defaults | fields))
        sampler = Sampler(request.sampler, vocab_size=VOCAB, prompt=prompt, emitted=[], logprobs=None)
        generation = Generation(
            request,
            state=take_slot(request, self.kv, self.model.model_hash),
            max_len=self.kv.layout.max_len,
            sampler=sampler,
            grammar=None,
            received_s=0.0,
        )
        self.ids[request_id] = []
        self.batch.join(generation)
        return generation

    def turn(self) -> None:
        """One decode step and one piece of a prompt, as the engine's loop does them."""
        if self.batch.decoding:
            self._take(self.batch.decode_step()[1])
        if self.batch.entering:
            self._take(self.batch.prefill_step(None)[1])

    def run(self) -> None:
        while self.batch.members:
            self.turn()

    def _take(self, outcomes: Sequence[tuple[Generation, list[Message] | Exception]]) -> None:
        for member, result in outcomes:
            if isinstance(result, Exception):
                self.ends[member.request_id] = result
                continue
            for message in result:
                if isinstance(message, Tokens):
                    self.ids[member.request_id] += message.ids
                elif isinstance(message, Finished):
                    self.ends[member.request_id] = message


def alone(model: ModelDescription, new_kv: NewKv, prompt: list[int], **fields: Any) -> list[int]:
    house = House(model, new_kv(model, slots=4))
    house.open(1, prompt, 0, **fields)
    house.run()
    return house.ids[1]


@pytest.fixture(params=["float32", "int8"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> ModelDescription:
    return write_decoder(tmp_path / "model", kv_type=request.param)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_each_member_of_a_ragged_batch_gets_the_tokens_that_it_gets_alone(
    model: ModelDescription, new_kv: NewKv, temperature: float
):
    house = House(model, new_kv(model, slots=4))
    sampler = SamplerSettings(temperature=temperature, seed=5)
    # Slots in another order than the rows, and members that join one after the other.
    for request_id, (prompt, slot) in enumerate(zip(PROMPTS, (2, 0, 3, 1), strict=True)):
        house.open(request_id, prompt, slot, sampler=sampler)
        house.turn()
    house.run()
    for request_id, prompt in enumerate(PROMPTS):
        assert house.ids[request_id] == alone(model, new_kv, prompt, sampler=sampler)


def test_members_that_leave_do_not_change_what_the_others_get(tiny: ModelDescription, new_kv: NewKv):
    house = House(tiny, new_kv(tiny, slots=4))
    members = [house.open(n, prompt, n, max_new_tokens=30) for n, prompt in enumerate(PROMPTS)]
    for _ in range(12):
        house.turn()
    for gone in (0, 2):
        house.batch.leave(members[gone])
        members[gone].cancel()
        house.turn()
    # A newcomer in a slot that came free.
    house.open(9, PROMPTS[0], 0, max_new_tokens=30)
    house.run()
    for request_id, prompt in ((1, PROMPTS[1]), (3, PROMPTS[3]), (9, PROMPTS[0])):
        assert house.ids[request_id] == alone(tiny, new_kv, prompt, max_new_tokens=30)


def test_more_members_than_rows_wait_for_one_and_all_end(tiny: ModelDescription, new_kv: NewKv):
    house = House(tiny, new_kv(tiny, slots=4), max_batch=2)
    for n, prompt in enumerate(PROMPTS):
        house.open(n, prompt, n)
    house.run()
    for n, prompt in enumerate(PROMPTS):
        assert house.ids[n] == alone(tiny, new_kv, prompt)


def test_a_short_prompt_does_not_wait_for_a_long_one(tiny: ModelDescription, new_kv: NewKv):
    house = House(tiny, new_kv(tiny, slots=4))
    house.open(1, PROMPTS[2], 0)
    house.turn()
    house.open(2, PROMPTS[0], 1)
    house.turn()
    assert house.ids[2] and not house.ids[1]


def test_while_nothing_decodes_a_prompt_enters_in_whole_chunks_and_else_in_what_fits_the_limit(
    tiny: ModelDescription, new_kv: NewKv
):
    house = House(tiny, new_kv(tiny, slots=4))
    house.open(1, PROMPTS[2], 0, prefill_chunk=32)
    assert house.batch.prefill_step(None)[0].tokens == 32
    assert house.batch.prefill_step(0.0)[0].tokens == SMALLEST_PIECE


def test_the_end_of_a_generation_says_with_how_many_it_shared_its_steps(tiny: ModelDescription, new_kv: NewKv):
    house = House(tiny, new_kv(tiny, slots=4))
    house.open(1, PROMPTS[0], 0)
    house.open(2, PROMPTS[0], 1)
    house.run()
    end = house.ends[2]
    assert isinstance(end, Finished)
    assert 1.5 < end.mean_batch <= 2


class _OneRowFails(Decoder):
    """A decoder whose runs fail while a certain token takes part."""

    poison = -1

    def step(
        self, ids: Sequence[int], pasts: Sequence[int], first_row: int = 0, by: SessionSpec | None = None
    ) -> F32:
        if self.poison in ids:
            raise EngineError("this token cannot be computed", code="model_run_failed")
        return super().step(ids, pasts, first_row, by)


def test_a_member_whose_run_fails_does_not_take_the_others_along(tiny: ModelDescription, new_kv: NewKv):
    want = [alone(tiny, new_kv, prompt) for prompt in PROMPTS]
    house = House(tiny, new_kv(tiny, slots=4))
    house.decoder.__class__ = _OneRowFails
    # The third token of the second member, unless another one has it earlier.
    poison = next(token for token in want[1] if all(token not in ids for n, ids in enumerate(want) if n != 1))
    house.decoder.poison = poison  # type: ignore[attr-defined]
    for n, prompt in enumerate(PROMPTS):
        house.open(n, prompt, n)
    house.run()
    assert isinstance(house.ends[1], EngineError)
    for n in (0, 2, 3):
        assert house.ids[n] == want[n]


class _FurtherSessionFails(Decoder):
    """A decoder whose runs by further sessions fail."""

    failed = 0

    def step(
        self, ids: Sequence[int], pasts: Sequence[int], first_row: int = 0, by: SessionSpec | None = None
    ) -> F32:
        self._fail(by)
        return super().step(ids, pasts, first_row, by)

    def extend(
        self, row: int, ids: Sequence[int], past: int, wanted: Wanted = "last", by: SessionSpec | None = None
    ) -> F32:
        self._fail(by)
        return super().extend(row, ids, past, wanted, by)

    def _fail(self, by: SessionSpec | None) -> None:
        if by is not None:
            self.failed += 1
            raise EngineError("there is not enough memory for this run", code="out_of_memory")


def test_the_own_session_does_what_a_further_one_fails_to_do(tiny: ModelDescription, new_kv: NewKv):
    want = [alone(tiny, new_kv, prompt) for prompt in PROMPTS]
    house = House(tiny, new_kv(tiny, slots=4))
    other = SessionSpec(threads=2)
    session = open_session(Path(tiny.folder) / tiny.graph_file, 2)
    house.decoder.add_session(other, session)
    house.sessions.add(other, session, 0)
    house.sessions.use(UseSessions(request_id=1, model="tiny", decode=other, prefill=other))
    house.decoder.__class__ = _FurtherSessionFails
    for n, prompt in enumerate(PROMPTS):
        house.open(n, prompt, n)
    house.run()
    assert [house.ids[n] for n in range(len(PROMPTS))] == want
    assert house.decoder.failed > 10  # type: ignore[attr-defined]


def record(ids: list[int]) -> SlotContents:
    return SlotContents(tokens=len(ids), ids_hash=extend_hash(HASH_OF_NOTHING, ids))


@pytest.mark.parametrize("copy", [True, False])
def test_a_prefix_that_was_computed_is_not_computed_again(model: ModelDescription, new_kv: NewKv, copy: bool):
    house = House(model, new_kv(model, slots=4))
    house.open(1, PROMPTS[2], 0)
    house.run()
    held = [*PROMPTS[2], *house.ids[1]][: house.kv.read_header(0).length]  # type: ignore[union-attr]
    # 40 tokens in chunks of 8: the first 24 positions are the same in an undisturbed run.
    prompt = [*PROMPTS[2][:24], *PROMPTS[1]]
    where = {"kv_copy_from": 0} if copy else {}
    house.open(2, prompt, 3 if copy else 0, kv_valid_tokens=24, kv_holds=record(held), **where)
    house.run()
    end = house.ends[2]
    assert isinstance(end, Finished)
    assert end.cached_tokens == 24
    assert house.ids[2] == alone(model, new_kv, prompt)


def test_a_copied_prefix_survives_that_its_source_is_used_by_somebody_else(tiny: ModelDescription, new_kv: NewKv):
    house = House(tiny, new_kv(tiny, slots=4))
    house.open(1, PROMPTS[2], 0)
    house.run()
    held = [*PROMPTS[2], *house.ids[1]][: house.kv.read_header(0).length]  # type: ignore[union-attr]
    prompt = [*PROMPTS[2][:16], *PROMPTS[3]]
    house.open(2, prompt, 1, kv_valid_tokens=16, kv_holds=record(held), kv_copy_from=0)
    house.open(3, PROMPTS[1], 0)
    house.run()
    assert house.ids[2] == alone(tiny, new_kv, prompt)
    assert house.ids[3] == alone(tiny, new_kv, PROMPTS[1])


def test_a_slot_that_does_not_hold_what_is_on_record_is_not_trusted(tiny: ModelDescription, new_kv: NewKv):
    house = House(tiny, new_kv(tiny, slots=4))
    house.open(1, PROMPTS[2], 0)
    house.run()
    other = record([*PROMPTS[2][:24], 1, 2, 3])
    house.open(2, PROMPTS[2], 1, kv_valid_tokens=24, kv_holds=other, kv_copy_from=0)
    house.run()
    end = house.ends[2]
    assert isinstance(end, Finished)
    assert end.cached_tokens == 0
    assert house.ids[2] == house.ids[1]


@pytest.mark.parametrize("copy", [True, False])
def test_a_prefix_is_still_there_after_an_engine_was_lost_that_had_just_taken_it_over(
    tiny: ModelDescription, new_kv: NewKv, copy: bool
):
    kv = new_kv(tiny, slots=4)
    house = House(tiny, kv)
    house.open(1, PROMPTS[2], 0)
    house.run()
    held = [*PROMPTS[2], *house.ids[1]][: house.kv.read_header(0).length]  # type: ignore[union-attr]
    prompt = [*PROMPTS[2][:24], *PROMPTS[1]]
    where = {"kv_copy_from": 0} if copy else {}
    for engine in (House(tiny, kv), House(tiny, kv)):  # the first one is lost before it has computed anything
        engine.open(2, prompt, 3 if copy else 0, kv_valid_tokens=24, kv_holds=record(held), **where)
    engine.run()
    end = engine.ends[2]
    assert isinstance(end, Finished)
    assert end.cached_tokens == 24
    assert engine.ids[2] == alone(tiny, new_kv, prompt)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_piece(tiny: ModelDescription, new_kv: NewKv):
    house = House(tiny, new_kv(tiny, slots=4))
    house.open(1, PROMPTS[2], 0, max_new_tokens=1)
    house.run()
    house.open(2, PROMPTS[2], 0, kv_valid_tokens=40, kv_holds=record(PROMPTS[2]))
    house.run()
    end = house.ends[2]
    assert isinstance(end, Finished)
    assert end.cached_tokens == 38
    assert house.ids[2][0] == house.ids[1][0]


@pytest.mark.parametrize("length", range(1, 30))
@pytest.mark.parametrize("chunk", [2, 3, 8])
def test_no_piece_of_a_prompt_is_a_single_token(tiny: ModelDescription, new_kv: NewKv, length: int, chunk: int):
    house = House(tiny, new_kv(tiny, slots=1, max_len=64), max_batch=1)
    generation = house.open(1, [*PROMPTS[1], *PROMPTS[3]][:length], 0, prefill_chunk=chunk)
    pieces = []
    while generation.prefilling:
        pieces.append(house.batch.prefill_step(None)[0].tokens)
    assert sum(pieces) == length
    assert min(pieces) > 1 or length == 1
