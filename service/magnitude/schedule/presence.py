"""Which models are in memory, for those who wait for one: asks the switch, tells it what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from magnitude.errors import MagnitudeError
from magnitude.schedule.arrivals import Arrivals
from magnitude.schedule.demand import Demand, DemandTeller, demands
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.plan import ModelPlan
from magnitude.schedule.residency import State

if TYPE_CHECKING:
    from magnitude.schedule.model_switch import ModelSwitch


class Presence:
    """`open_tasks` gives the tasks under way. Until `use` names a switch, all models are taken for loaded."""

    def __init__(
        self,
        plans: Mapping[str, ModelPlan],
        *,
        max_queue: int,
        open_tasks: Callable[[], Iterable[OpenTask]],
        engine_up: Callable[[], bool],
    ) -> None:
        self._plans = plans
        self._open_tasks = open_tasks
        self._engine_up = engine_up
        self._switch: ModelSwitch | None = None
        self._demand = DemandTeller(plans, self._demands, self._tell)
        self.arrivals = Arrivals(max_queue, self._demand.changed)

    def use(self, switch: ModelSwitch) -> None:
        """From now on `switch` says which models are in memory, and is told which are needed."""
        self._switch = switch

    def ready(self, model: str, *, begun: bool) -> bool:
        """Whether a request may go to the model now."""
        if self._switch is None:
            return True
        # One that was begun holds a slot, so that its model stays until it is done.
        return self._switch.state(model) == "loaded" if begun else self._switch.may_start(model)

    def residency(self, model: str) -> State:
        if self._switch is not None:
            return self._switch.state(model)
        return "loaded" if self._engine_up() and self._plans[model].failure is None else "absent"

    def wanted(self, model: str) -> None:
        """Somebody asks for the model, though with no task yet."""
        if self._switch is not None:
            self._switch.wanted(model)

    async def present(self, model: str) -> None:
        """Returns when the model is in memory. Raises why it will not be."""
        if not self.ready(model, begun=False):
            await self.arrivals.wait(model)

    def come(self) -> list[str]:
        """Models that can start requests, after some may have been loaded; who waits for one of them goes on."""
        there = [model for model in self._plans if self.ready(model, begun=False)]
        for model in there:
            self.arrivals.there(model)
        return there

    def refuse(self, refusal: Callable[[str], MagnitudeError | None]) -> None:
        """Fail what waits for models, without a task yet, where `refusal` has a reason."""
        for model in self.arrivals.models():
            error = refusal(model)
            if error is not None:
                self.arrivals.refuse(model, error)

    def demand_changed(self) -> None:
        """Something about the requests may have changed."""
        self._demand.changed()

    def forget_told(self) -> None:
        """Whoever was told what is needed has lost it."""
        self._demand.forget()

    def _demands(self) -> dict[str, Demand]:
        return demands(self._open_tasks(), self.arrivals.models())

    def _tell(self, model: str, demand: Demand) -> None:
        if self._switch is not None:
            self._switch.in_use(model, demand.begun, waiting=demand.waits)
