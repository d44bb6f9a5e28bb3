from __future__ import annotations

import asyncio
import random

from bench.encoder_loads import Traffic, drive
from bench.encoders import padding_figures
from magnitude.models.description import EncoderShape, ModelDescription

MODEL = ModelDescription(
    name="m",
    kind="embedder",
    family="bert",
    folder="/m",
    graph_file="model.onnx",
    model_hash="m",
    weight_bytes=1,
    encoder=EncoderShape(width=4, max_tokens=64),
)


def test_texts_that_are_joined_need_fewer_runs_and_more_padding() -> None:
    figures = padding_figures(list(range(1, 65)), MODEL)
    for count in (4, 16):
        rows = [row for row in figures if row.texts == count]
        assert [row.max_padding for row in rows] == sorted(row.max_padding for row in rows)
        assert rows[0].runs > rows[-1].runs
        assert rows[0].padding < rows[-1].padding


def test_every_client_sends_its_share_and_the_large_request_is_there_first() -> None:
    sent: list[list[list[int]]] = []

    async def send(inputs: list[list[int]]) -> None:
        sent.append(inputs)
        await asyncio.sleep(0)

    traffic = Traffic(name="t", texts=[[1], [2]], clients=3, requests=9, beside=[[9]] * 5)
    rate, p95_s = asyncio.run(drive(send, traffic, random.Random(1)))
    assert sent[0] == traffic.beside
    assert len(sent) == 1 + 9
    assert rate > 0
    assert p95_s >= 0
