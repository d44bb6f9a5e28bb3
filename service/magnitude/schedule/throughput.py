"""How many generations a model should compute at once, and whether drafts keep its text: measured on this board, once
for each way to run it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import msgspec

from magnitude.engine.protocol import Failed, Measure, Measured
from magnitude.log import ORDINARY_BURST
from magnitude.persist import StateFile
from magnitude.policy.knee import knee
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.plan import ModelPlan

log = logging.getLogger("magnitude.schedule")

SCHEMA = 2
# More than any board has models and upgrades in its life, few enough for one small file.
MAX_MEASUREMENTS = 256


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """By a key that names everything it depends on: seconds of a decode step by number of rows, and whether drafts
    are verified to the bit."""

    step_s: dict[str, dict[int, float]] = {}
    verifies_exactly: dict[str, bool] = {}


def measured_rows(max_batch: int) -> tuple[int, ...]:
    """Batch sizes that are measured: powers of two, and the largest one allowed."""
    sizes = {1 << power for power in range(max_batch.bit_length())}
    return tuple(sorted(size for size in {*sizes, max_batch} if size <= max_batch))


class Throughput:
    """Measures a freshly loaded decoder, or remembers it."""

    def __init__(self, state_folder: Path) -> None:
        self._file = StateFile(state_folder / "throughput.json", Measurements, schema=SCHEMA)
        loaded = self._file.load(Measurements)
        self._known, self._exact = dict(loaded.step_s), dict(loaded.verifies_exactly)

    @property
    def off(self) -> str:
        """Why measurements are not kept; empty while they are."""
        return self._file.off

    async def measure(
        self, plan: ModelPlan, engine: FreshEngine, *, ort_version: str, cpu_features: tuple[str, ...]
    ) -> None:
        """Set the plan's `measured_slots` to the knee of its throughput, and `verifies_exactly`. A model that cannot
        be measured, or not now, keeps its largest batch and counts as inexact."""
        if plan.kv is None:
            return
        key = _key(plan, ort_version, cpu_features)
        if key not in self._known:
            request_id = engine.next_id()
            rows = measured_rows(plan.provision.max_batch)
            message = Measure(
                request_id=request_id,
                model=plan.description.name,
                slot=plan.scratch_slot,
                rows=rows,
                past_tokens=min(128, plan.provision.context_length - 1),
            )
            answer = await engine.ask(message, request_id)
            if isinstance(answer, Failed) and answer.code == "engine_busy":
                return  # loaded while others run: measured when it is loaded the next time
            if not isinstance(answer, Measured):
                log.warning(
                    "throughput not measured",
                    extra={"fields": {"model": plan.description.name, "reason": getattr(answer, "message", "")}},
                )
                return
            self._known[key] = dict(zip(rows, answer.step_s, strict=True))
            self._exact[key] = answer.verifies_exactly
            self._known = dict(list(self._known.items())[-MAX_MEASUREMENTS:])
            self._exact = {kept: self._exact.get(kept, False) for kept in self._known}
            known = Measurements(step_s=dict(self._known), verifies_exactly=dict(self._exact))
            # In a thread: a card that is busy holds a sync up for seconds.
            await asyncio.to_thread(self._file.save, known)
        step_s = self._known[key]
        plan.verifies_exactly = self._exact.get(key, False)
        plan.measured_slots = max(1, min(knee(step_s), plan.provision.max_batch))
        rates = {f"tokens_per_s_of_{rows}": round(rows / seconds) for rows, seconds in step_s.items() if seconds}
        drafts = "exact" if plan.verifies_exactly else "inexact"
        fields = {"model": plan.description.name, "slots": plan.measured_slots, "drafts": drafts, **rates}
        cause = f"compute slots {plan.description.name}"
        log.info("compute slots", extra={"cause": cause, "burst": ORDINARY_BURST, "fields": fields})


def _key(plan: ModelPlan, ort_version: str, cpu_features: tuple[str, ...]) -> str:
    provision = plan.provision
    parts = [
        plan.description.model_hash,
        plan.graph_file,
        ort_version,
        f"threads {provision.threads} batch {provision.max_batch} kv {provision.kv_type}",
        *sorted(cpu_features),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
