"""The gate over an engine that answers each text with its own ids."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Coroutine
from typing import Any

import pytest

from magnitude.engine.protocol import Embed, Vectors
from magnitude.errors import ContextLengthExceeded, EngineError, EngineNotReady, Overloaded, RequestError
from magnitude.models.description import EncoderShape, ModelDescription
from magnitude.schedule.encode_batching import EncodeLimits
from magnitude.schedule.encode_gate import EncodeGate
from magnitude.schedule.inference import Priority

MODEL = ModelDescription(
    name="m",
    kind="embedder",
    family="bert",
    folder="/m",
    graph_file="model.onnx",
    model_hash="m",
    weight_bytes=1,
    encoder=EncoderShape(width=2, max_tokens=64),
)
POISON = 666


class Engine:
    """Answers when `hold` is set; `[first id, length]` for each text. A batch with `POISON` in it fails."""

    def __init__(self) -> None:
        self.hold = asyncio.Event()
        self.hold.set()
        self.batches: list[Embed] = []
        self.priorities: list[Priority] = []
        self.withdrawn = 0
        self.busy = False
        self.error: Exception | None = None

    async def run(self, message: Embed, priority: Priority) -> Vectors:
        self.batches.append(message)
        self.priorities.append(priority)
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        if self.error is not None:
            raise self.error
        if any(POISON in ids for ids in message.inputs):
            raise EngineError("the text is poison")
        data = b"".join(struct.pack("<2f", ids[0], len(ids)) for ids in message.inputs)
        return Vectors(request_id=message.request_id, count=len(message.inputs), width=2, data=data, run_s=0.001)


def gate_over(engine: Engine, *, busy: bool = False, **limits: Any) -> EncodeGate:
    """A gate whose requests wait for each other until `together` says that the engine is idle, if it is `busy`."""
    engine.busy = busy
    return EncodeGate(
        engine.run,
        limits=EncodeLimits(wait_s=60, **limits),
        next_id=itertools.count(1).__next__,
        busy=lambda: engine.busy,
    )


async def together(engine: Engine, gate: EncodeGate, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
    """Results of requests that are all there before the engine has time for them; an error counts as one."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    await asyncio.sleep(0)
    engine.busy = False
    gate.engine_load_changed()
    return await asyncio.gather(*tasks, return_exceptions=True)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def rows_of(inputs: list[list[int]]) -> list[bytes]:
    return [struct.pack("<2f", ids[0], len(ids)) for ids in inputs]


def test_requests_that_come_together_are_one_message_and_each_gets_its_own_rows():
    async def work() -> None:
        engine = Engine()
        gate = gate_over(engine, busy=True)
        wanted = [[[1, 2], [3]], [[4]], [[5, 6, 7]]]
        results = await together(engine, gate, *(gate.embed(MODEL, inputs, []) for inputs in wanted))
        assert [result.rows for result in results] == [rows_of(inputs) for inputs in wanted]
        assert len(engine.batches) == 1

    run(work())


def test_a_batch_goes_with_the_highest_priority_in_it():
    async def work() -> None:
        engine = Engine()
        gate = gate_over(engine, busy=True)
        await together(
            engine,
            gate,
            gate.embed(MODEL, [[1]], [], priority="background"),
            gate.embed(MODEL, [[2]], [], priority="interactive"),
        )
        assert engine.priorities == ["interactive"]

    run(work())


def test_a_long_request_is_put_together_again_in_the_order_asked():
    async def work() -> None:
        engine = Engine()
        inputs = [[n] * (1 + n * 7 % 60) for n in range(1, 100)]
        result = await gate_over(engine).embed(MODEL, inputs, [])
        assert result.rows == rows_of(inputs)
        assert len(engine.batches) > 5
        assert result.run_s == pytest.approx(0.001 * len(engine.batches))

    run(work())


def test_token_types_travel_with_their_texts_and_are_zero_where_a_request_has_none():
    async def work() -> None:
        engine = Engine()
        gate = gate_over(engine, busy=True)
        await together(engine, gate, gate.embed(MODEL, [[1, 2]], [[0, 1]]), gate.embed(MODEL, [[3, 4, 5]], []))
        (message,) = engine.batches
        assert dict(zip(map(tuple, message.inputs), message.token_types, strict=True)) == {
            (1, 2): [0, 1],
            (3, 4, 5): [0, 0, 0],
        }

    run(work())


def test_nothing_is_sent_for_no_texts():
    async def work() -> None:
        engine = Engine()
        result = await gate_over(engine).embed(MODEL, [], [])
        assert (result.rows, result.width, engine.batches) == ([], 2, [])

    run(work())


def test_texts_that_the_encoder_cannot_take_are_refused_before_they_meet_others():
    async def work() -> None:
        engine = Engine()
        gate = gate_over(engine)
        for inputs, error in (([[1] * 65], ContextLengthExceeded), ([[]], RequestError), ([[-1]], RequestError)):
            with pytest.raises(error):
                await gate.embed(MODEL, inputs, [])
        assert engine.batches == []

    run(work())


def test_a_text_on_which_the_engine_fails_costs_only_its_own_request():
    async def work() -> None:
        engine = Engine()
        gate = gate_over(engine, busy=True)
        good, bad = await together(engine, gate, gate.embed(MODEL, [[1]], []), gate.embed(MODEL, [[POISON]], []))
        assert not isinstance(good, BaseException)
        assert good.rows == rows_of([[1]])
        assert isinstance(bad, EngineError)

    run(work())


def test_an_engine_that_does_not_come_is_told_to_every_request_of_the_batch_at_once():
    async def work() -> None:
        engine = Engine()
        engine.error = EngineNotReady("lost")
        gate = gate_over(engine, busy=True)
        outcomes = await together(engine, gate, gate.embed(MODEL, [[1]], []), gate.embed(MODEL, [[2]], []))
        assert all(isinstance(outcome, EngineNotReady) for outcome in outcomes)
        assert len(engine.batches) == 1

    run(work())


def test_a_client_that_leaves_takes_its_batch_back_when_nobody_else_wants_it():
    async def work() -> None:
        engine = Engine()
        engine.hold.clear()
        gate = gate_over(engine)
        alone = asyncio.ensure_future(gate.embed(MODEL, [[1]], []))
        while not engine.batches:
            await asyncio.sleep(0.001)
        alone.cancel()
        await asyncio.wait({alone})
        engine.hold.set()
        assert (await gate.embed(MODEL, [[2]], [])).rows == rows_of([[2]])
        assert engine.withdrawn == 1
        assert gate.waiting == 0

    run(work())


def test_a_client_that_leaves_does_not_disturb_the_others_of_its_batch():
    async def work() -> None:
        engine = Engine()
        engine.hold.clear()
        gate = gate_over(engine, busy=True)
        leaving = asyncio.ensure_future(gate.embed(MODEL, [[1]], []))
        staying = asyncio.ensure_future(gate.embed(MODEL, [[2]], []))
        await together(engine, gate)
        while not engine.batches:
            await asyncio.sleep(0.001)
        leaving.cancel()
        await asyncio.wait({leaving})
        engine.hold.set()
        assert (await staying).rows == rows_of([[2]])
        assert engine.withdrawn == 0

    run(work())


def test_a_full_queue_is_said_to_be_full():
    async def work() -> None:
        engine = Engine()
        engine.hold.clear()
        gate = gate_over(engine, max_queue=1, max_batch=1)
        open_requests = [asyncio.ensure_future(gate.embed(MODEL, [[n]], [])) for n in range(1, 4)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await gate.embed(MODEL, [[9]], [])
        engine.hold.set()
        await asyncio.gather(*open_requests)

    run(work())


def test_closing_ends_what_is_under_way():
    async def work() -> None:
        engine = Engine()
        engine.hold.clear()
        gate = gate_over(engine)
        request = asyncio.ensure_future(gate.embed(MODEL, [[1]], []))
        await asyncio.sleep(0.001)
        await gate.close()
        with pytest.raises(EngineError):
            await request

    run(work())
