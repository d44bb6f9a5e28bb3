"""What sliding costs in quality, with the embedded model on real text."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from engine_driver import KvFile
from tokenizers import Tokenizer

from magnitude.engine.decoder import Decoder
from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.sessions import open_session
from magnitude.engine.slide import Slide, plan_slide, slide_slot
from magnitude.models.catalogue import scan
from magnitude.models.description import ModelDescription

pytestmark = pytest.mark.models

TEXT = Path(__file__).parent.parent.parent / "docs/operations.md"
WINDOW, TOKENS = 64, 140
THETA = 100_000.0  # of SmolLM2's rotation

# (decoder, memory, slide, ids that stay) -> None
Move = Callable[[Decoder, KvMemory, Slide, list[int]], None]


@pytest.fixture(scope="module")
def model(magnitude_home: Path) -> ModelDescription:
    (found,) = [
        entry
        for entry in scan(magnitude_home / "models")
        if isinstance(entry, ModelDescription) and entry.name == "smollm2-135m-instruct"
    ]
    return found


@pytest.fixture(scope="module")
def ids(model: ModelDescription) -> list[int]:
    tokenizer = Tokenizer.from_file(str(Path(model.folder) / "tokenizer.json"))
    found: list[int] = tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids[:TOKENS]
    return found


def perplexity(model: ModelDescription, ids: Sequence[int], move: Move) -> float:
    """Of `ids` behind the first window, in a slot of that length."""
    assert model.decoder is not None
    file = KvFile(KvLayout.of(model.decoder, slots=1, max_len=WINDOW))
    kv = KvMemory(file.fd, file.layout)
    decoder = Decoder(model, open_session(Path(model.folder) / model.graph_file, len(os.sched_getaffinity(0))), kv)
    decoder.show(0, 0)
    decoder.show(decoder.prefill_row, 0)
    held: list[int] = []
    losses = []
    for token, following in pairwise(ids):
        if slide := plan_slide(len(held), WINDOW):
            del held[slide.drop_from : slide.drop_from + slide.drop_tokens]
            move(decoder, kv, slide, held)
        logits = decoder.step([token], [len(held)])[0].astype(np.float64)
        held.append(token)
        losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[following])
    decoder.close()
    kv.close()
    file.close()
    return float(np.exp(np.mean(losses[WINDOW:])))


def turned(decoder: Decoder, kv: KvMemory, slide: Slide, held: list[int]) -> None:
    frequencies = [THETA ** (-2 * i / kv.layout.head_dim) for i in range(kv.layout.head_dim // 2)]
    slide_slot(kv, 0, slide, frequencies, WINDOW)


def only_moved(decoder: Decoder, kv: KvMemory, slide: Slide, held: list[int]) -> None:
    slide_slot(kv, 0, slide, [0.0] * (kv.layout.head_dim // 2), WINDOW)


def computed_again(decoder: Decoder, kv: KvMemory, slide: Slide, held: list[int]) -> None:
    decoder.extend(decoder.prefill_row, held, 0)


def test_a_slid_window_predicts_text_about_as_well_as_one_that_is_computed_again(
    model: ModelDescription, ids: list[int]
) -> None:
    ways = {move.__name__: perplexity(model, ids, move) for move in (turned, computed_again, only_moved)}
    print(ways)
    assert ways["turned"] < 1.15 * ways["computed_again"]
    assert ways["only_moved"] > 1.5 * ways["computed_again"]  # so that the test can tell
