"""What an INT8 KV cache may cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_sources import decoder_folder

from magnitude.models.importing.kv_check import KV_KL_NATS, halves, kv_cost
from magnitude.models.importing.verify_decoder import DecoderCheck
from magnitude.models.sources import open_source

TEXTS = [list(range(10, 40)), list(range(40, 80))]


def rows(ids: list[int]) -> np.ndarray:
    return np.random.default_rng(ids[0]).standard_normal((len(ids), 100)).astype(np.float32)


def test_equal_caches_cost_nothing() -> None:
    cost = kv_cost(rows, rows, TEXTS)
    assert cost.agreement.tokens == 70
    assert (cost.agreement.top1, cost.agreement.kl_nats) == (1.0, 0.0)
    assert cost.float_perplexity == cost.int8_perplexity
    assert cost.within(KV_KL_NATS)


def test_perplexity_is_that_of_the_following_tokens() -> None:
    def even(ids: list[int]) -> np.ndarray:
        return np.zeros((len(ids), 50), np.float32)

    assert kv_cost(even, even, [[1, 2, 3]]).float_perplexity == pytest.approx(50, rel=1e-5)


@pytest.mark.parametrize("noise", [0.5, float("nan")])
def test_a_cache_that_changes_what_the_model_says_is_not_within(noise: float) -> None:
    def noisy(ids: list[int]) -> np.ndarray:
        return rows(ids) + np.float32(noise) * rows(ids[::-1])

    assert not kv_cost(rows, noisy, TEXTS).within(KV_KL_NATS)


def test_texts_that_set_the_scales_do_not_judge_them() -> None:
    setting, judging = halves([[1], [2], [3]])
    assert (setting, judging) == ([[1], [3]], [[2]])
    assert halves([[1]]) == ([[1]], [[1]])


@pytest.mark.parametrize("bits", [4, 16])
def test_a_model_that_fails_its_tolerance_keeps_a_float_cache_and_says_so(
    golden: Path, tmp_path: Path, bits: int
) -> None:
    source = open_source(decoder_folder(golden, tmp_path / "tiny"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    decision = DecoderCheck(
        source,
        scratch,
        bits=bits,
        kv="int8",
        texts=TEXTS,
        report=lambda *_: None,
        kv_kl_nats=-1.0,  # type: ignore[arg-type]
    ).decide(memory_bytes=1 << 32)
    assert (decision.kv_type, decision.kv_scales, decision.kv_origin) == ("float32", None, "")
    assert "stays float32" in decision.notes[0]
    last = decision.verification[-1]
    assert (last.graph, last.passed) == ("INT8 KV cache", False)
    assert last.perplexity is not None
