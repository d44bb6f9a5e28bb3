"""Lets a freshly loaded model serve only after it has computed its golden set right on this board.

A kernel that is wrong for one CPU gives fluent nonsense and no error, so each model proves itself once for each
(model, ONNX Runtime version, CPU features). The verdict is kept, so that later starts cost nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import msgspec

from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.previous import forget_previous
from magnitude.persist import StateFile
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.plan import ModelPlan

log = logging.getLogger("magnitude.schedule")

VERDICTS_SCHEMA = 1
# Verdicts kept: more than any board has models and upgrades in its life, few enough for one small file.
MAX_VERDICTS = 256


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of golden runs that passed; failures are run again at each start, since an upgrade may mend them."""

    passed: list[str] = []


def verdict_key(model_hash: str, graph_file: str, ort_version: str, cpu_features: tuple[str, ...]) -> str:
    """Names everything that a verdict depends on."""
    text = "\n".join([model_hash, graph_file, ort_version, *sorted(cpu_features)])
    return hashlib.sha256(text.encode()).hexdigest()


class GoldenGate:
    """Lets a freshly loaded model pass, or says why not."""

    def __init__(self, state_folder: Path) -> None:
        self._file = StateFile(state_folder / "golden.json", Verdicts, schema=VERDICTS_SCHEMA)
        self._passed = list(self._file.load(Verdicts).passed)

    @property
    def off(self) -> str:
        """Why verdicts are not kept; empty while they are."""
        return self._file.off

    async def admit(
        self,
        plan: ModelPlan,
        engine: FreshEngine,
        *,
        graph_file: str,
        ort_version: str,
        cpu_features: tuple[str, ...],
    ) -> MagnitudeError | None:
        """None when the model, loaded from `graph_file`, may serve; `golden_failed` when it computes nonsense."""
        key = verdict_key(plan.description.model_hash, graph_file, ort_version, cpu_features)
        if key in self._passed:
            await asyncio.to_thread(forget_previous, plan.description)
            return None
        # NumPy costs the service 30 MB; a service whose models have all passed never loads it.
        from magnitude.schedule.golden_run import run_golden

        try:
            result = await run_golden(plan, engine)
        except MagnitudeError as error:
            return _failed(plan, error.message) if error.code == "bad_logits" else error
        if result is None or not result.prompts:
            log.info("no golden set to check the model with", extra={"fields": {"model": plan.description.name}})
            return None
        fields = {
            "model": plan.description.name,
            "prompts": result.prompts,
            "top1": result.top1_agreement,
            "mean_logit_difference": round(result.mean_logit_difference, 3),
            "lowest_cosine": round(result.lowest_cosine, 5),
        }
        if not result.passed:
            log.error("golden set failed", extra={"fields": fields | {"reason": result.reason}})
            return _failed(plan, result.reason)
        log.info("golden set passed", extra={"fields": fields})
        self._passed = [*self._passed, key][-MAX_VERDICTS:]
        # In a thread: a card that is busy holds a sync up for seconds.
        await asyncio.to_thread(self._file.save, Verdicts(passed=self._passed))
        # Not before: until now the model that it has replaced may be wanted back.
        await asyncio.to_thread(forget_previous, plan.description)
        return None


def _failed(plan: ModelPlan, reason: str) -> ModelError:
    return ModelError(
        f"{plan.description.name} does not compute on this CPU what it computed at import: {reason}",
        code="golden_failed",
        hint="Import it again on this board, or install another onnxruntime version",
    )
