"""Lets a variant stand in for its parent only after it has come near enough to it on this board.

What an import measured holds for the machine of the import: kernels differ by CPU, and one may be wrong for the
width of a variant alone. So the comparison is made once more for each (variant, parent, tolerance, ONNX Runtime
version, CPU features), when the variant is loaded and before it is first used. The verdict is kept, so that later
loads cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from magnitude.errors import MagnitudeError
from magnitude.models.tolerance import default_tolerance, outside, told
from magnitude.persist import StateFile
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.golden_gate import MAX_VERDICTS, VERDICTS_SCHEMA, Verdicts, verdict_key
from magnitude.schedule.plan import ModelPlan

log = logging.getLogger("magnitude.schedule")


class VariantGate:
    """Says of freshly loaded variants why they may not stand in."""

    def __init__(self, state_folder: Path) -> None:
        self._file = StateFile(state_folder / "variants.json", Verdicts, schema=VERDICTS_SCHEMA)
        self._passed = list(self._file.load(Verdicts).passed)

    @property
    def off(self) -> str:
        """Why verdicts are not kept; empty while they are."""
        return self._file.off

    async def check(
        self, plan: ModelPlan, engine: FreshEngine, *, ort_version: str, cpu_features: tuple[str, ...]
    ) -> str:
        """Why the variant, loaded and right by its own golden set, is never to be chosen by itself; "" when it may
        be. Nothing is raised: a variant that cannot be compared does not stand in."""
        variant = plan.description
        if variant.outside:
            return variant.outside
        tolerance = variant.tolerance or default_tolerance(variant.kind)
        compared = f"{variant.model_hash} {variant.parent_hash} {told(tolerance)}"
        key = verdict_key(compared, plan.graph_file, ort_version, cpu_features)
        if key in self._passed:
            return ""
        from magnitude.schedule.golden_run import run_parent_golden

        try:
            found = await run_parent_golden(plan, engine)
        except MagnitudeError as error:
            reason = f"it could not be compared with {variant.variant_of} here: {error.message}"
        else:
            reason = outside(tolerance, found)
            reason = reason and f"on this board: {reason}"
        fields = {"model": variant.name, "variant_of": variant.variant_of}
        if reason:
            log.error("variant is outside its tolerance", extra={"fields": fields | {"reason": reason}})
            return reason
        log.info("variant is within its tolerance", extra={"fields": fields})
        self._passed = [*self._passed, key][-MAX_VERDICTS:]
        await asyncio.to_thread(self._file.save, Verdicts(passed=self._passed))
        return ""
