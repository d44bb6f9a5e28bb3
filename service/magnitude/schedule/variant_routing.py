"""Which of a model's variants computes a request that names the model.

The policy names a variant for a kind of task; here is what stands against it. A conversation whose KV lies with one
of them stays there, since all of it would be computed again elsewhere, unless heat, supply or memory force it away.
Nobody waits for a variant: until it is loaded, and has shown on this board that it is near enough, the parent serves.
Loading holds the engine up, so it begins when nothing is open, or when that does not come for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from magnitude.policy.situation import TaskKind
from magnitude.schedule.inference import GenerationTask
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.served_models import ServedModels
from magnitude.schedule.slot_terms import Known

# For a model and a kind of task: the name of the variant that should compute it; "" or the model's own: none.
VariantOf = Callable[[str, TaskKind], str]

# Under a load without a pause a variant is loaded after so long all the same: a board gets hot within minutes, and a
# load holds requests up for 0.5 s (SmolLM2-135M) to some seconds.
LOAD_AT_LATEST_S = 30.0
# What nobody has wanted for so long is not loaded any more: the reason for it has passed.
FORGOTTEN_AFTER_S = 60.0


class _Wish(msgspec.Struct):
    """A variant that requests would have gone to, had it been loaded."""

    first_s: float
    last_s: float


class VariantRouting:
    """`ready` says whether a model may start requests now, `wanted` has one loaded, `known` says what is held of a
    conversation, and `reserved` whether a client has room kept with a model."""

    def __init__(
        self,
        models: ServedModels,
        *,
        ready: Callable[[str], bool],
        wanted: Callable[[str], None],
        known: Callable[[ModelPlan, GenerationTask], Known],
        reserved: Callable[[str, str], bool],
        clock: Callable[[], float],
    ) -> None:
        self._models = models
        self._ready = ready
        self._wanted = wanted
        self._known = known
        self._reserved = reserved
        self._clock = clock
        self._wishes: dict[str, _Wish] = {}
        self._variant_of: VariantOf = lambda model, task: ""
        self._forced: Callable[[], bool] = lambda: False

    def choose_by(self, variant_of: VariantOf, forced: Callable[[], bool] = lambda: False) -> None:
        """From now on `variant_of` names the variant, and conversations move to it while `forced` says so."""
        self._variant_of = variant_of
        self._forced = forced

    def for_generation(self, parent: ModelPlan, task: GenerationTask, adapter: str) -> ModelPlan:
        """Who computes the generation. `parent` is what the request names; a variant that is named itself stays."""
        # An adapter was made for the parent's weights.
        fitting = [] if adapter else [plan for plan in self._standing_in(parent) if _fits(plan, parent, task)]
        if not fitting:
            return parent
        if not self._forced():
            home = self._home([parent, *fitting], task)
            if home is not None and (home is parent or self._ready(home.description.name)):
                return home
            if self._reserved(task.client, parent.description.name):
                return parent
        return self._wished(parent, "generate", fitting)

    def for_texts(self, parent: ModelPlan) -> ModelPlan:
        """Who computes an encoder's vectors."""
        return self._wished(parent, "embed", self._standing_in(parent))

    def look(self, *, idle: bool) -> None:
        """Requests came or went; `idle`: nothing is open. Has those loaded whose time has come."""
        if not self._wishes:
            return
        now_s = self._clock()
        for name, wish in list(self._wishes.items()):
            if now_s - wish.last_s > FORGOTTEN_AFTER_S:
                del self._wishes[name]
            elif idle or now_s - wish.first_s >= LOAD_AT_LATEST_S:
                del self._wishes[name]
                self._wanted(name)

    def _standing_in(self, parent: ModelPlan) -> list[ModelPlan]:
        if parent.description.variant_of:
            return []
        return [plan for plan in self._models.variants(parent.description.name) if plan.stands_in]

    def _wished(self, parent: ModelPlan, task: TaskKind, fitting: Sequence[ModelPlan]) -> ModelPlan:
        if not fitting:
            return parent
        name = self._variant_of(parent.description.name, task)
        chosen = next((plan for plan in fitting if plan.description.name == name), parent)
        if chosen is parent or self._ready(name):
            return chosen
        now_s = self._clock()
        self._wishes.setdefault(name, _Wish(now_s, now_s)).last_s = now_s
        return parent

    def _home(self, plans: Sequence[ModelPlan], task: GenerationTask) -> ModelPlan | None:
        """Who holds most of the conversation that the task continues; None: nobody holds any."""
        held = [(self._known(plan, task), plan) for plan in plans]
        mine = [(known.tokens, plan) for known, plan in held if known.conversation and known.tokens]
        return max(mine, key=lambda found: found[0])[1] if mine else None


def _fits(variant: ModelPlan, parent: ModelPlan, task: GenerationTask) -> bool:
    """Whether the variant has the positions that the parent would give: its context may be cut for want of memory.
    Beyond its context nothing slides, since the parent's begins to slide elsewhere."""
    wanted = min(parent.provision.context_length, len(task.prompt) + task.max_new_tokens)
    slides = task.overflow == "slide" and len(task.prompt) + task.max_new_tokens > variant.provision.context_length
    return variant.provision.context_length >= wanted and not slides
