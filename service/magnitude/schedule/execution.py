"""What admission decided, carried out: on the open tasks, and with messages to the engine."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from magnitude.engine.client import EngineLink
from magnitude.engine.message import Message
from magnitude.engine.protocol import CancelRequest, Trim
from magnitude.errors import DeadlineExceeded, EngineError, MagnitudeError, Overloaded
from magnitude.schedule.conversations import Conversations
from magnitude.schedule.events import Dropped, Effect, Expire, Interrupt, Lost, Pause, Reject, Start
from magnitude.schedule.open_generation import OpenGeneration
from magnitude.schedule.open_tasks import OpenRun, OpenTask
from magnitude.schedule.served_models import ServedModels

log = logging.getLogger("magnitude.schedule")


class Execution:
    """Holds the open tasks and the engine's connection. `ended` and `paused` are called for a task that never reached
    the engine or has left it by other means than a message. `preemptions` counts pauses by model."""

    def __init__(
        self,
        models: ServedModels,
        conversations: Conversations,
        *,
        ended: Callable[[OpenTask], None],
        paused: Callable[[OpenGeneration], None],
    ) -> None:
        self.open: dict[int, OpenTask] = {}
        self.preemptions: Counter[str] = Counter()
        self._models = models
        self._conversations = conversations
        self._ended = ended
        self._paused = paused
        self._link: EngineLink | None = None
        self._restoring: set[asyncio.Task[None]] = set()

    def engine_up(self, link: EngineLink) -> None:
        self._link = link

    def engine_down(self) -> None:
        self._link = None

    def trim(self, request_id: int) -> None:
        """Ask the engine, if there is one, to give back what it does not need."""
        self._send(Trim(request_id=request_id))

    async def close(self) -> None:
        """Returns when no saved copy is being read any more."""
        if self._restoring:
            await asyncio.wait(self._restoring)

    def carry_out(self, effect: Effect) -> MagnitudeError | None:
        """Returns what a rejected task was told."""
        task = self.open.get(effect.request_id)
        if task is None:
            return None  # it ended by an effect before this one
        match effect:
            case Start():
                self._start(task, effect)
            case Interrupt(request_id):
                self._send(CancelRequest(target=request_id))
            case Pause(request_id):
                if isinstance(task, OpenGeneration):
                    task.pausing = True
                    self.preemptions[task.model] += 1
                    self._send(CancelRequest(target=request_id))
            case Reject():
                return self._reject(task, effect)
            case Dropped():
                if isinstance(task, OpenGeneration):
                    task.finish("cancelled")
                self.give_back(task)
            case Lost():
                task.lost()
            case Expire():
                self._expire(task, effect)
        return None

    def give_back(self, task: OpenTask) -> None:
        """The task is over: its slot, when it has one, belongs to nobody from now on."""
        del self.open[task.request_id]
        if isinstance(task, OpenGeneration) and task.placement is not None:
            if task.restoring:
                return  # its slot is being written; whoever does that gives it back
            plan = self._models.by_name[task.model]
            ids = [] if task.spent.slid_tokens else [*task.task.prompt, *task.emitted]
            self._conversations.finished(plan, task.request_id, task.placement.slot, task.task, ids)

    # --- inside ---

    def _start(self, task: OpenTask, start: Start) -> None:
        task.started(start.waited_s)
        task.paused = False
        if isinstance(task, OpenRun):
            self._send_first(task, task.message)
            return
        assert isinstance(task, OpenGeneration)
        if start.max_new_tokens is not None:
            task.limit(start.max_new_tokens)
        assert task.placement is not None, "admission starts what was placed"
        if task.restoring:
            return  # its engine was lost while a saved copy was read, which goes on: it is sent when that is done
        if task.placement.saved is not None and task.restored is None:
            restoring = asyncio.get_running_loop().create_task(self._restore_and_send(task))
            self._restoring.add(restoring)
            restoring.add_done_callback(self._restoring.discard)
        else:
            self._send_first(task, task.message(resumed=start.resumed, reuse=task.restored is not False))

    async def _restore_and_send(self, task: OpenGeneration) -> None:
        plan = self._models.by_name[task.model]
        assert task.placement is not None
        task.restoring = True
        task.restored = await self._conversations.restore(plan, task.placement)
        task.restoring = False
        if self.open.get(task.request_id) is not task:  # nobody wants it any more
            self._conversations.finished(plan, task.request_id, task.placement.slot, task.task, task.task.prompt)
            return
        # What was asked of the engine in the meantime it could not do: it has never heard of this request.
        if task.due:
            task.finish("length", cut="deadline")
        if task.paused:
            return  # its engine is gone: it is sent to the next one
        if task.over:
            self._ended(task)
        elif task.pausing:
            self._paused(task)
        else:
            self._send_first(task, task.message(resumed=False, reuse=task.restored))

    def _send_first(self, task: OpenTask, message: Message) -> None:
        try:
            self._send(message)
        except Exception as error:
            # What cannot be put into a frame never reaches the engine: its place must come free here.
            if not isinstance(error, MagnitudeError):
                log.exception("a request could not be sent to the engine")
                error = EngineError(f"the request could not be sent to the engine: {type(error).__name__}")
            task.fail(error)
            self._ended(task)

    def _reject(self, task: OpenTask, effect: Reject) -> MagnitudeError:
        error = Overloaded(
            f"the queue is full: {effect.waiting} requests are waiting",
            retry_after_s=effect.retry_after_s,
            position=effect.position,
            hint="Ask again later, or raise server.max_queue",
        )
        task.fail(error)
        self.give_back(task)
        return error

    def _expire(self, task: OpenTask, effect: Expire) -> None:
        if effect.hard:
            if isinstance(task, OpenGeneration):
                task.missed()
            else:
                task.fail(DeadlineExceeded("the deadline passed before there was a result", hint="Allow more time"))
        elif isinstance(task, OpenGeneration):
            if effect.running:
                task.end_soon()
                self._send(CancelRequest(target=task.request_id))
            else:
                task.finish("length", cut="deadline")
        if not effect.running:
            self.give_back(task)

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)
