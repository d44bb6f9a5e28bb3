"""Running a model's golden set on this board before it may serve.

A kernel that is wrong for one CPU gives fluent nonsense and no error, so each model proves itself once for each
(model, ONNX Runtime version, CPU features). The verdict is kept, so later starts cost nothing.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from magnitude.engine.protocol import (
    Embed,
    Failed,
    Finished,
    Generate,
    Message,
    SamplerSettings,
    Tokens,
    ToService,
    Vectors,
)
from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.golden import GOLDEN_FILE, Golden, GoldenResult, check
from magnitude.models.untrusted import CONFIG_MAX_BYTES, read_capped
from magnitude.persist import StateFile
from magnitude.schedule.dispatcher import error_from
from magnitude.schedule.plan import ModelPlan

log = logging.getLogger("magnitude.schedule")

VERDICTS_SCHEMA = 1
# Verdicts kept: more than any board has models and upgrades in its life, few enough for one small file.
MAX_VERDICTS = 256
# Log probabilities asked for: eight times the logits that a golden set keeps, so that a reordered tail is still seen.
ASKED_LOGPROBS = 64


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of golden runs that passed; failures are run again at each start, since an upgrade may mend them."""

    passed: list[str] = []


class Engine(Protocol):
    """One engine to which messages go and from which answers come."""

    def next_id(self) -> int:
        """A request id that nobody else uses."""
        ...

    async def ask(self, message: Message, request_id: int) -> ToService:
        """Send `message` and wait for the first answer with its id."""
        ...


def verdict_key(model_hash: str, ort_version: str, cpu_features: tuple[str, ...]) -> str:
    """Names everything that a verdict depends on."""
    text = "\n".join([model_hash, ort_version, *sorted(cpu_features)])
    return hashlib.sha256(text.encode()).hexdigest()


def read_golden(plan: ModelPlan) -> Golden | None:
    """The model's golden set, or None where it has none (folders that were not imported by us)."""
    path = Path(plan.description.folder) / GOLDEN_FILE
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_capped(path, CONFIG_MAX_BYTES, what="the golden set"), type=Golden)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(
            f"{path} cannot be read: {error}", hint=f"Import {plan.description.name} again", code="golden_invalid"
        ) from error


class GoldenGate:
    """Lets a freshly loaded model pass, or says why not."""

    def __init__(self, state_folder: Path) -> None:
        self._file = StateFile(state_folder / "golden.json", Verdicts, schema=VERDICTS_SCHEMA)
        self._passed = list(self._file.load(Verdicts).passed)

    async def admit(
        self, plan: ModelPlan, engine: Engine, *, ort_version: str, cpu_features: tuple[str, ...]
    ) -> MagnitudeError | None:
        """None when the model may serve."""
        try:
            golden = read_golden(plan)
            if golden is None:
                return None
            key = verdict_key(plan.description.model_hash, ort_version, cpu_features)
            if key in self._passed:
                return None
            result = await _run(plan, golden, engine)
        except MagnitudeError as error:
            return error
        fields = {
            "model": plan.description.name,
            "prompts": result.prompts,
            "top1": result.top1_agreement,
            "mean_logit_difference": round(result.mean_logit_difference, 3),
            "lowest_cosine": round(result.lowest_cosine, 5),
        }
        if not result.passed:
            log.error("golden set failed", extra={"fields": fields | {"reason": result.reason}})
            return ModelError(
                f"{plan.description.name} does not compute on this CPU what it computed at import: {result.reason}",
                code="golden_failed",
                hint="Import it again on this board, or install another onnxruntime version",
            )
        log.info("golden set passed", extra={"fields": fields})
        self._passed = [*self._passed, key][-MAX_VERDICTS:]
        self._file.save(Verdicts(passed=self._passed))
        return None


async def _run(plan: ModelPlan, golden: Golden, engine: Engine) -> GoldenResult:
    rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
    for prompt in golden.prompts:
        rows[tuple(prompt.ids)] = await _logits(plan, prompt.ids, prompt.logits[0], engine)
    for item in golden.vectors:
        request_id = engine.next_id()
        message = Embed(request_id=request_id, model=plan.description.name, inputs=[item.ids])
        answer = await engine.ask(message, request_id)
        if not isinstance(answer, Vectors):
            raise _failure(answer)
        rows[tuple(item.ids)] = np.frombuffer(answer.data, dtype="<f4")
    return check(lambda ids: rows[tuple(ids)], golden)


async def _logits(plan: ModelPlan, ids: list[int], best: float, engine: Engine) -> NDArray[np.float32]:
    """The last row of the logits as far as log probabilities tell it.

    They equal the logits up to a constant, which changes no probability: it is chosen so that the best token gets
    the value `best` that it had at import.
    """
    decoder = plan.description.decoder
    assert decoder is not None, "only decoders have golden prompts"
    request_id = engine.next_id()
    message = Generate(
        request_id=request_id,
        model=plan.description.name,
        slot=0,
        prompt=ids,
        max_new_tokens=1,
        sampler=SamplerSettings(temperature=0.0),
        logprobs=ASKED_LOGPROBS,
        prefill_chunk=plan.strategy.prefill_chunk,
    )
    answer = await engine.ask(message, request_id)
    if not isinstance(answer, Tokens) or not answer.logprobs:
        raise _failure(answer)
    top = answer.logprobs[0].top
    # Whatever is not among the best is at most as likely as the last of them.
    row = np.full(decoder.vocab_size, top[-1][1] - top[0][1] + best, dtype=np.float32)
    for token, logprob in top:
        row[token] = logprob - top[0][1] + best
    return row


def _failure(answer: ToService) -> MagnitudeError:
    if isinstance(answer, Failed):
        return error_from(answer)
    if isinstance(answer, Finished):
        return ModelError("the golden run ended before its first token", code="golden_failed")
    return ModelError(f"the golden run was answered with {type(answer).__name__}", code="golden_failed")
