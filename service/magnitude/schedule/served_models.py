"""Which models there are, under which names, and whether one can serve now."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import msgspec

from magnitude.errors import EngineNotReady, MagnitudeError, ModelNotFound, RequestError
from magnitude.models.adapters import SEPARATOR, resolve_name
from magnitude.models.description import Kind, ModelDescription
from magnitude.models.variants import smaller_first, smaller_than
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.report import EngineView


class ServedModels:
    """`plans` is in order: the first decoder is the default. Raises what a client should be told."""

    def __init__(
        self,
        plans: Sequence[ModelPlan],
        *,
        aliases: Mapping[str, str],
        engine: EngineView,
        clock: Callable[[], float],
        left_out: Mapping[str, MagnitudeError] | None = None,
    ) -> None:
        self.by_name = {plan.description.name: plan for plan in plans}
        self.aliases = dict(aliases)
        self._left_out = dict(left_out or {})
        self._engine = engine
        self._clock = clock
        # Set while the engine is down for good; requests are refused with it at once.
        self.refusal: MagnitudeError | None = None

    def all(self) -> list[ModelPlan]:
        return list(self.by_name.values())

    def descriptions(self) -> list[ModelDescription]:
        """Everything that requests are to name, each model followed by itself with each of its adapters."""
        names = [
            name
            for plan in self.all()
            if not plan.description.variant_of
            for name in (plan.description.name, *(adapter.full_name for adapter in plan.adapters))
        ]
        return [self.described(name) for name in names]

    def variants(self, name: str) -> list[ModelPlan]:
        """All variants of the model of that name, the smallest first."""
        plans = {plan.description.name: plan for plan in self.all() if plan.description.variant_of == name}
        return [plans[model.name] for model in smaller_first(plan.description for plan in plans.values())]

    def smaller(self, name: str) -> tuple[str, ...]:
        """Variants that may stand in for the model where the board has to be relieved, the smallest first."""
        plans = {plan.description.name: plan for plan in self.variants(name) if plan.stands_in}
        parent = self.by_name[name].description
        return tuple(model.name for model in smaller_than(parent, (plan.description for plan in plans.values())))

    def names(self) -> list[str]:
        """Models that are to be named, the default chat model first."""
        return [name for name, plan in self.by_name.items() if not plan.description.variant_of]

    def resolve(self, name: str) -> tuple[ModelPlan, str]:
        """Model and adapter ("": none) that a name or alias means: `MODEL`, `MODEL:ADAPTER`, an adapter's own name, a
        variant's; "" or "default" is the default chat model. Raises `ModelNotFound`, or why the model is left out."""
        default = next((n for n in self.names() if self.by_name[n].description.kind == "decoder"), "")
        wanted, adapter = resolve_name(
            self.aliases.get(name, name),
            models=self.by_name,
            adapters=[adapter for plan in self.by_name.values() for adapter in plan.adapters],
            default=default,
        )
        plan = self.by_name.get(wanted)
        if plan is None and wanted in self._left_out:
            raise copy.copy(self._left_out[wanted])
        if plan is None:
            known = ", ".join(self.names()) or "none"
            raise ModelNotFound(
                f"the model {wanted!r} is not served here",
                param="model",
                hint=f"Served models: {known}. 'magnitude import' adds one, after a restart",
            )
        return plan, adapter

    def plan(self, name: str) -> ModelPlan:
        """The model of `resolve`, whatever its adapter."""
        return self.resolve(name)[0]

    def described(self, name: str) -> ModelDescription:
        """What requests see of `name`: the model's description, which is called `MODEL:ADAPTER` with an adapter."""
        plan, adapter = self.resolve(name)
        if not adapter:
            return plan.description
        return msgspec.structs.replace(plan.description, name=f"{plan.description.name}{SEPARATOR}{adapter}")

    def usable(self, name: str, kinds: tuple[Kind, ...], purpose: str) -> ModelPlan:
        """The model, when it is of one of `kinds` and can serve now. Raises `RequestError` or `EngineNotReady`."""
        plan = self.plan(name)
        if plan.description.kind not in kinds:
            fitting = [n for n in self.names() if self.by_name[n].description.kind in kinds]
            raise RequestError(
                f"{plan.description.name} is of kind {plan.description.kind} and cannot {purpose}",
                param="model",
                code="model_kind_mismatch",
                hint=f"Models that can: {', '.join(fitting) or 'none is loaded'}",
            )
        refusal = self.refusal_of(plan)
        if refusal is not None:
            raise refusal
        return plan

    def refusal_of(self, plan: ModelPlan) -> EngineNotReady | None:
        """Why the model cannot serve; a new error each time, since a raised one carries its traceback along."""
        if self.refusal is not None:
            return EngineNotReady(self.refusal.message, hint=self.refusal.hint)
        if plan.failure is not None:
            return EngineNotReady(
                f"{plan.description.name} could not be loaded: {plan.failure.message}", hint=plan.failure.hint
            )
        lifecycle = self._engine.lifecycle
        if lifecycle.struggling:
            return EngineNotReady(
                f"the engine does not stay up: {lifecycle.reason}",
                retry_after_s=max(1.0, lifecycle.next_check_s(self._clock())),
                hint="It is tried again by itself; see 'magnitude doctor' and the log for the cause",
            )
        return None
