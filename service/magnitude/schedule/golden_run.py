"""Running a model's golden set through the engine, before the model serves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magnitude.engine.protocol import Embed, Failed, Finished, Generate, SamplerSettings, Tokens, ToService, Vectors
from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.golden import GoldenResult, check, read_golden
from magnitude.models.parent_golden import compare_prompts, compare_vectors, read_parent_golden
from magnitude.models.tolerance import Nearness
from magnitude.schedule.engine_errors import error_from
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.plan import ModelPlan

# Log probabilities asked for: eight times the logits that a golden set keeps, so that a reordered tail is still seen.
ASKED_LOGPROBS = 64


async def run_golden(plan: ModelPlan, engine: FreshEngine) -> GoldenResult | None:
    """The outcome, or None for a model without a golden set. Raises `MagnitudeError` when it cannot be run."""
    golden = read_golden(Path(plan.description.folder), plan.description.model_hash)
    if golden is None:
        return None
    rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
    for prompt in golden.prompts:
        rows[tuple(prompt.ids)] = await _logits(plan, prompt.ids, prompt.logits[0], engine)
    for item in golden.vectors:
        rows[tuple(item.ids)] = await _vector(plan, item.ids, engine)
    return check(lambda ids: rows[tuple(ids)], golden)


async def run_parent_golden(plan: ModelPlan, engine: FreshEngine) -> Nearness:
    """How near a variant comes to its parent on what the parent said at import. Raises `MagnitudeError`."""
    golden = read_parent_golden(Path(plan.description.folder), plan.description.parent_hash)
    if plan.description.decoder is not None:
        found = {tuple(prompt.ids): dict(await _top(plan, prompt.ids, engine)) for prompt in golden.prompts}
        return compare_prompts(golden, lambda ids: found[tuple(ids)])
    rows = {tuple(item.ids): await _vector(plan, item.ids, engine) for item in golden.vectors}
    return compare_vectors(golden, lambda ids: rows[tuple(ids)])


async def _vector(plan: ModelPlan, ids: list[int], engine: FreshEngine) -> NDArray[np.float32]:
    request_id = engine.next_id()
    answer = await engine.ask(Embed(request_id=request_id, model=plan.description.name, inputs=[ids]), request_id)
    if not isinstance(answer, Vectors):
        raise _failure(answer)
    return np.frombuffer(answer.data, dtype="<f4")


async def _logits(plan: ModelPlan, ids: list[int], best: float, engine: FreshEngine) -> NDArray[np.float32]:
    """The last row of the logits as far as log probabilities tell it.

    They equal the logits up to a constant, which changes no probability: it is chosen so that the best token gets
    the value `best` that it had at import.
    """
    decoder = plan.description.decoder
    assert decoder is not None, "only decoders have golden prompts"
    top = await _top(plan, ids, engine)
    # Whatever is not among the best is at most as likely as the last of them.
    row = np.full(decoder.vocab_size, top[-1][1] - top[0][1] + best, dtype=np.float32)
    for token, logprob in top:
        row[token] = logprob - top[0][1] + best
    return row


async def _top(plan: ModelPlan, ids: list[int], engine: FreshEngine) -> list[tuple[int, float]]:
    """The best next tokens with their log probabilities, in order."""
    request_id = engine.next_id()
    message = Generate(
        request_id=request_id,
        model=plan.description.name,
        slot=plan.scratch_slot,
        prompt=ids,
        max_new_tokens=1,
        sampler=SamplerSettings(temperature=0.0),
        logprobs=ASKED_LOGPROBS,
        prefill_chunk=plan.provision.prefill_chunk,
    )
    answer = await engine.ask(message, request_id)
    if not isinstance(answer, Tokens) or not answer.logprobs:
        raise _failure(answer)
    return answer.logprobs[0].top


def _failure(answer: ToService) -> MagnitudeError:
    if isinstance(answer, Failed):
        return error_from(answer)
    if isinstance(answer, Finished):
        return ModelError("the golden run ended before its first token", code="golden_failed")
    return ModelError(f"the golden run was answered with {type(answer).__name__}", code="golden_failed")
