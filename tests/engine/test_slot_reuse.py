"""The slot table and a real engine: what the table says is reusable, the engine finds as recorded and reuses."""

from __future__ import annotations

import random
from collections.abc import Callable

from engine_driver import EngineDriver, KvFile

from magnitude.engine.protocol import Finished, Generate, PrefillProgress, SamplerSettings, Tokens
from magnitude.models.description import ModelDescription
from magnitude.schedule.scope import Scope
from magnitude.schedule.slot_table import SlotTable
from magnitude.schedule.slot_terms import PagedTensor, Placement, Wanted

CHUNK = 16
RNG = random.Random(5)


def some(count: int) -> list[int]:
    return [RNG.randrange(250) for _ in range(count)]


class Conversations:
    """Runs requests one after the other: table, message, answers, table."""

    def __init__(self, engine: EngineDriver, model: ModelDescription, kv: KvFile) -> None:
        layout = kv.layout
        assert model.decoder is not None
        token_bytes = model.decoder.kv_bytes_per_token()
        self.engine = engine
        self.table = SlotTable(
            slots=layout.slots,
            max_len=layout.max_len,
            tensors=(PagedTensor(bytes_per_token=token_bytes),),
            budget_bytes=layout.slots * layout.max_len * token_bytes,
            share_prefixes=False,
        )
        self.scope = Scope("tiny", model.model_hash, layout.layout_id, "plan", "", "ann")
        self.now_s = 0.0

    def ask(self, prompt: list[int], new: int = 6) -> tuple[list[int], Placement, Finished]:
        self.now_s += 1.0
        request_id = self.engine.new_id()
        placement = self.table.place(Wanted(request_id, self.scope, prompt, new, True), self.now_s)
        assert placement is not None
        self.engine.send(
            Generate(
                request_id=request_id,
                model="tiny",
                slot=placement.slot,
                prompt=prompt,
                max_new_tokens=new,
                sampler=SamplerSettings(temperature=0.0),
                prefill_chunk=CHUNK,
                kv_valid_tokens=placement.valid_tokens,
                kv_holds=placement.holds,
                kv_copy_from=placement.copy_from,
            )
        )
        ids: list[int] = []
        while True:
            message = self.engine.next()
            match message:
                case PrefillProgress():
                    self.table.progressed(request_id, message.done_tokens)
                case Tokens():
                    ids += message.ids
                case Finished():
                    # The last id was drawn and never went in.
                    self.table.finished(request_id, (prompt + ids)[:-1], self.now_s)
                    return ids, placement, message
                case _:
                    raise AssertionError(f"unexpected {message}")


def test_the_engine_reuses_what_the_table_says_it_can_and_answers_as_if_it_had_not(
    tiny: ModelDescription, new_kv: Callable[..., KvFile], engine: EngineDriver
) -> None:
    engine.load(tiny, kv := new_kv(tiny, slots=3, max_len=256))
    talk = Conversations(engine, tiny, kv)
    system = some(4 * CHUNK)
    first = [*system, *some(20)]
    answer, cold, _ = talk.ask(first)
    assert cold.valid_tokens == 0
    # The next turn, in place: everything but the last token of the answer is there.
    second = [*first, *answer, *some(10)]
    _, warm, end = talk.ask(second)
    assert (warm.slot, warm.copy_from) == (cold.slot, None)
    assert (warm.valid_tokens, end.cached_tokens) == (len(first) + len(answer) - 1,) * 2
    # Another conversation with the same system prompt, by copy.
    other = [*system, *some(30)]
    ids, copied, end = talk.ask(other)
    assert copied.copy_from == cold.slot
    assert (copied.valid_tokens, end.cached_tokens) == (len(system), len(system))
    undisturbed, _ = engine.generate(other, slot=2, max_new_tokens=6, prefill_chunk=CHUNK)
    assert ids == undisturbed


def test_after_a_death_the_next_engine_trusts_the_memory_and_the_record(
    tiny: ModelDescription, new_kv: Callable[..., KvFile]
) -> None:
    kv = new_kv(tiny, slots=3, max_len=256)
    first = some(5 * CHUNK)
    with EngineDriver() as engine:
        engine.load(tiny, kv)
        talk = Conversations(engine, tiny, kv)
        answer, _, _ = talk.ask(first)
        engine.kill()
    with EngineDriver() as engine:
        engine.load(tiny, kv)
        talk.engine = engine
        _, warm, end = talk.ask([*first, *answer, *some(10)])
        assert end.cached_tokens == warm.valid_tokens == len(first) + len(answer) - 1


def test_what_an_engine_computed_and_nobody_was_told_is_not_computed_again(
    tiny: ModelDescription, new_kv: Callable[..., KvFile], engine: EngineDriver
) -> None:
    engine.load(tiny, new_kv(tiny, slots=3, max_len=256))
    prompt = some(3 * CHUNK)
    whole, _ = engine.generate(prompt, max_new_tokens=12)
    # To the service, only four of the twelve have come.
    resumed, end = engine.generate(prompt, emitted=whole[:4], kv_valid_tokens=len(prompt) + 3, max_new_tokens=12)
    assert isinstance(end, Finished)
    assert resumed == whole[4:]
    assert end.cached_tokens == len(prompt)
    # A slot that went on otherwise is not taken for it.
    engine.generate([*prompt, 1], max_new_tokens=12)
    _, end = engine.generate(prompt, emitted=whole[:4], kv_valid_tokens=len(prompt) + 3, max_new_tokens=12)
    assert isinstance(end, Finished)
    assert end.cached_tokens == 0
