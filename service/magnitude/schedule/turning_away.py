"""Open requests that cannot be served any more: who is failed, and who goes on with another model."""

from __future__ import annotations

import copy
from collections.abc import Callable

from magnitude.errors import MagnitudeError
from magnitude.schedule.conversations import Conversations
from magnitude.schedule.demand import waits
from magnitude.schedule.events import Submit
from magnitude.schedule.execution import Execution
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenTask
from magnitude.schedule.presence import Presence
from magnitude.schedule.served_models import ServedModels
from magnitude.schedule.suspicion import Suspicion


class TurningAway:
    """`submit` puts a task into the queue or raises, `withdraw` takes one out of it."""

    def __init__(
        self,
        models: ServedModels,
        conversations: Conversations,
        execution: Execution,
        presence: Presence,
        suspicion: Suspicion,
        *,
        submit: Callable[[OpenTask, Submit], None],
        withdraw: Callable[[int], None],
        next_id: Callable[[], int],
    ) -> None:
        self._models = models
        self._conversations = conversations
        self._execution = execution
        self._presence = presence
        self._suspicion = suspicion
        self._submit = submit
        self._withdraw = withdraw
        self._next_id = next_id

    def refuse(self, model: str, error: MagnitudeError) -> None:
        """Fail everything that waits for the model, but for what others than the client sent to it."""
        for task in [task for task in self._execution.open.values() if task.model == model and waits(task)]:
            if not self._moved(task):
                task.fail(copy.copy(error))
                task.withdraw()
        self._presence.arrivals.refuse(model, error)

    def refuse_all(self, error: MagnitudeError) -> None:
        """No engine will come: fail what waits and everything that comes after."""
        self._models.refusal = error
        self.refuse_unservable()

    def refuse_unservable(self) -> None:
        """Fail every open request whose model cannot serve."""

        def refusal(model: str) -> MagnitudeError | None:
            return self._models.refusal_of(self._models.by_name[model])

        for task in list(self._execution.open.values()):
            error = refusal(task.model)
            if error is not None and not self._moved(task):
                task.fail(error)
                task.withdraw()
        self._presence.refuse(refusal)

    def shed(self, error: MagnitudeError) -> None:
        """Memory is short: fail all that waits, and all that runs but for the generation that has run longest."""
        running = [task for task in self._execution.open.values() if not waits(task)]
        kept = next((task for task in running if isinstance(task, OpenGeneration)), None)
        for task in [task for task in self._execution.open.values() if task is not kept]:
            task.fail(copy.copy(error))
            task.withdraw()
        self._presence.refuse(lambda model: error)

    def _moved(self, task: OpenTask) -> bool:
        """Whether a generation that its variant cannot go on with goes on with the model that was named."""
        if not isinstance(task, OpenGeneration) or not task.stands_in_for or task.restoring or not waits(task):
            return False
        parent, request_id = self._models.by_name[task.stands_in_for], task.request_id
        if self._models.refusal_of(parent) is not None:
            return False
        self._execution.give_back(task)
        self._suspicion.over(request_id)
        self._withdraw(request_id)
        task.move(self._next_id(), parent.description.name, max_draft=parent.max_draft)
        task.strategy_id = ""  # the model's own, not the variant's
        try:
            self._submit(task, task.submission(self._conversations.known(parent, task.task)))
        except MagnitudeError as error:
            task.fail(error)
        return True
