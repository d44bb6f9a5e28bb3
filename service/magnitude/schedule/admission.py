"""Admission: which request waits, which one starts, which one must give way. A pure state machine.

Each decoder model has compute slots, as many generations as run together at the throughput knee; encoder and tensor
runs share a few places in the engine, so that a flood of embeddings cannot fill its inbox. One bounded queue stands
in front of them all; who is next is decided per pool (`pool.py`). A generation needs a KV slot besides, which
`Places` gives; and nothing starts whose model is not loaded. A limit may hold for the generations of all models
together: then the most pressing request of any of them is next.

No compute slot stands idle while somebody waits for it, with two exceptions: a slot that is held for a client that
announced itself, and slots left free while one that is overdue waits for KV memory.

`apply(event, now_s)` returns effects and does nothing else; the dispatcher carries them out. `now_s` is monotonic;
should it ever go back, time stands still here until it has caught up.
"""

from __future__ import annotations

import math
import sys

from magnitude.schedule.events import (
    Dropped,
    Effect,
    Ended,
    EngineDown,
    EngineUp,
    Event,
    Expire,
    Interrupt,
    LimitChanged,
    Lost,
    Pause,
    Paused,
    Places,
    PlacesChanged,
    Proved,
    Reject,
    Reserve,
    SetComputeSlots,
    Start,
    Submit,
    Withdraw,
)
from magnitude.schedule.fair_share import work_tokens
from magnitude.schedule.pool import OVERDUE, Pool, PoolFigures, Request
from magnitude.schedule.rates import LEAST_NEW_TOKENS
from magnitude.schedule.reservations import CLASS, Hold

# Encoder and tensor runs that the engine holds at once: one that runs and one that is ready to follow, so that
# the engine never waits for the service between two of them.
RUN_PLACES = 2

# A background generation runs for so long before it is paused (again). A pause costs no compute, since its KV stays,
# but without an interval a stream of short interactive requests would keep it from ever ending; in five seconds it
# comes some hundred tokens further.
PAUSE_INTERVAL_S = 5.0

# How long slots are held after a request that announced more, in mean waits of its kind of task: were waits
# exponential, 86 of 100 would be back by then. And while no wait was measured yet.
HOLD_WAITS = 2.0
LEAST_HOLD_S = 1.0
FIRST_HOLD_S = 10.0


class Admission:
    """The queue and the compute slots of one engine."""

    def __init__(self, *, max_queue: int, places: Places, aging_s: float = 10.0, utilisation: float = 0.7) -> None:
        self._max_queue = max_queue
        self._places = places
        self._aging_s = aging_s
        self._utilisation = utilisation
        self._runs = self._new_pool("")
        self._runs.slots = RUN_PLACES
        self._pools: dict[str, Pool] = {}
        self._requests: dict[int, Request] = {}
        self._dated: dict[int, Request] = {}  # those with a deadline
        self._suspects: set[int] = set()
        self._proved: set[int] = set()
        self._default_model = ""
        self._limit: int | None = None
        self._arrivals = 0
        self._up = False
        self._now_s = -math.inf

    @property
    def waiting(self) -> int:
        """Requests that do not run: in the queue or paused."""
        return sum(len(pool.waiting) for pool in self._all())

    @property
    def running(self) -> int:
        return sum(len(pool.running) for pool in self._all())

    def free_slots(self, model: str) -> int:
        pool = self._pools.get(model)
        return max(0, self._free(pool)) if pool is not None and self._up else 0

    def figures(self, now_s: float) -> tuple[PoolFigures, ...]:
        """The state of every pool; the last one, without a name, are encoder and tensor runs."""
        now_s = max(now_s, self._now_s)
        return tuple(pool.figures(now_s) for pool in self._all())

    def hold(self, client: str, model: str, now_s: float) -> Hold:
        """What is held for the client at `now_s`, none where it has `requests` 0; with the reason why its newest
        announcement did not get all. `model` "": the default one."""
        pool = self._pools.get(model or self._default_model)
        now_s = max(now_s, self._now_s)
        if pool is None:
            return Hold(client=client, requests=0, priority="normal", until_s=now_s, reason="the model is not loaded")
        return pool.reservations.of(client, now_s)

    def next_wake_s(self, now_s: float) -> float | None:
        """When a `Tick` is due at the latest, unless another event comes before; None: nothing waits for time."""
        now_s = max(now_s, self._now_s)
        due_s = min((self._due_s(request) for request in self._dated.values()), default=math.inf)
        for pool in self._all():
            if not pool.waiting or not self._up:
                continue
            if self._free(pool) > 0:
                due_s = min(due_s, pool.reservations.next_expiry_s(), pool.next_aging_s(now_s))
            elif self._pauses_wanted(pool, now_s) > 0:
                due_s = min([due_s, *(_rested_s(r) for r in self._in_the_way(pool) if _may_pause(r))])
        return None if due_s == math.inf else max(due_s, now_s)

    def tune(self, *, max_queue: int, aging_s: float, utilisation: float) -> None:
        """New settings, from the next decision on. What waits already stays, however long the queue may be now."""
        self._max_queue, self._aging_s, self._utilisation = max_queue, aging_s, utilisation
        for pool in self._all():
            pool.tune(aging_s=aging_s, utilisation=utilisation)

    def apply(self, event: Event, now_s: float) -> list[Effect]:
        now_s = self._now_s = max(now_s, self._now_s)
        effects: list[Effect] = []
        newcomer: Request | None = None
        match event:
            case Submit():
                newcomer = self._submit(event, now_s)
            case Withdraw(request_id):
                effects += self._withdraw(request_id, now_s)
            case Ended():
                self._ended(event, now_s)
            case Paused(request_id):
                effects += self._paused(request_id, now_s)
            case EngineUp(models):
                self._up = True
                self._default_model = next(iter(models), "")
                for model in [*models, *(self._pools.keys() - models.keys())]:
                    self._pool(model).slots = max(0, models.get(model, 0))
            case EngineDown(suspects):
                effects += self._engine_down(suspects, now_s)
            case Proved(request_id) if request_id in self._suspects:
                self._suspects.discard(request_id)
                self._proved.add(request_id)
            case SetComputeSlots(model, slots):
                self._pool(model).slots = max(0, slots)
            case LimitChanged(limit):
                self._limit = None if limit is None else max(1, limit)
            case Reserve():
                self._reserve(event, now_s)
            case PlacesChanged():
                for pool in self._all():
                    pool.places_changed()
            case _:
                pass
        # After the event: what just ended was in time, however late the news of it.
        effects += self._expire(now_s)
        effects += self._start(now_s)
        # Only what could not start at once counts against the queue.
        queue = self._queue() if newcomer is not None and not newcomer.begun else []
        if newcomer in queue and len(queue) > self._max_queue:
            effects.append(self._reject(self._least_wanted(newcomer, now_s), now_s))
        return effects

    # --- events ---

    def _submit(self, event: Submit, now_s: float) -> Request:
        request = self._pool_of(event).arrived(event, self._arrivals, now_s)
        self._arrivals += 1
        self._requests[event.request_id] = request
        if event.deadline is not None:
            self._dated[event.request_id] = request
        return request

    def _withdraw(self, request_id: int, now_s: float) -> list[Effect]:
        request = self._requests.get(request_id)
        if request is None or request.interrupted:
            return []
        if request.running:
            request.interrupted = True
            return [Interrupt(request_id)]
        self._leave(request, now_s, answered=False)
        return [Dropped(request_id)]

    def _ended(self, event: Ended, now_s: float) -> None:
        request = self._requests.get(event.request_id)
        if request is None or not request.running:
            return
        submit = request.submit
        pool = self._pool_of(submit)
        pool.stopped(request, now_s)
        run_s = event.compute_s or request.ran_s
        work = work_tokens(event.prefill_tokens or submit.tokens, event.new_tokens)
        pool.shares.correct(submit.client, work - request.charged)
        pool.rates.add_tokens(
            prefill_tokens=event.prefill_tokens,
            prefill_s=event.prefill_s,
            new_tokens=event.new_tokens,
            decode_s=event.decode_s,
        )
        if not event.failed:
            pool.rates.run_s.add(run_s)
            pool.segments.computed(submit.task, run_s)
        self._leave(request, now_s, answered=not event.failed)
        if submit.expect > 0 and not event.failed and submit.lane == "generation":
            # From its end on: until then its client waits for this one.
            wait_s = pool.segments.expected_wait_s(submit.task)
            hold_s = FIRST_HOLD_S if wait_s is None else max(LEAST_HOLD_S, HOLD_WAITS * wait_s)
            pool.reservations.announce(
                submit.client, submit.expect, submit.priority, slots=pool.slots, hold_s=hold_s, now_s=now_s
            )

    def _engine_down(self, suspects: frozenset[int], now_s: float) -> list[Effect]:
        self._up = False
        self._suspects |= suspects & self._requests.keys()
        self._proved.clear()
        effects: list[Effect] = []
        for request in [request for pool in self._all() for request in pool.running.values()]:
            request_id = request.submit.request_id
            if request.interrupted or request.expired:
                # Nobody wants more of it.
                self._leave(request, now_s, answered=request.expired)
                effects.append(Dropped(request_id))
            else:
                self._wait_again(request, now_s)
                effects.append(Lost(request_id))
        return effects

    def _paused(self, request_id: int, now_s: float) -> list[Effect]:
        request = self._requests.get(request_id)
        if request is None or not request.running:
            return []
        if request.interrupted or request.expired:
            # Nobody wants more of it, and the engine, which holds it no longer, has nothing more to say about it.
            self._leave(request, now_s, answered=False)
            return [Dropped(request_id)]
        self._wait_again(request, now_s)
        return []

    def _wait_again(self, request: Request, now_s: float) -> None:
        pool = self._pool_of(request.submit)
        pool.stopped(request, now_s)
        request.age_from_s = now_s
        pool.waiting.append(request)

    def _reserve(self, event: Reserve, now_s: float) -> None:
        pool = self._pools.get(event.model or self._default_model)
        if pool is not None:
            pool.reservations.announce(
                event.client, event.requests, event.priority, slots=pool.slots, hold_s=event.hold_s, now_s=now_s
            )

    # --- what follows from the state ---

    def _expire(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for request in [r for r in self._dated.values() if self._due_s(r) <= now_s]:
            request_id = request.submit.request_id
            hard = request.hard_due_s <= now_s
            effects.append(Expire(request_id, request.running, hard))
            if not request.running:
                self._leave(request, now_s, answered=request.begun and not hard)
                continue
            request.expired = True
            if hard:
                request.interrupted = True
                effects.append(Interrupt(request_id))
        for pool in self._all():
            pool.reservations.expire(now_s)
        return effects

    def _due_s(self, request: Request) -> float:
        """When its deadline asks for something; never, once that was done or it was asked to stop."""
        if request.expired or request.interrupted:
            return math.inf
        return min(request.hard_due_s, request.soft_due_s)

    def _start(self, now_s: float) -> list[Effect]:
        if not self._up:
            return []
        if (suspects := self._suspects_first()) is not None:
            return self._start_suspect(suspects, now_s)
        effects: list[Effect] = []
        if self._limit is not None:
            # One at a time: who is next is decided between the pools as well.
            while (start := self._start_most_pressing(now_s)) is not None:
                effects.append(start)
        for pool in self._all():
            while (start := self._start_next(pool, now_s)) is not None:
                effects.append(start)
            effects += self._preempt(pool, now_s)
        return effects

    def _start_most_pressing(self, now_s: float) -> Start | None:
        pressing: list[tuple[tuple[float, ...], Pool]] = []
        for pool in self._pools.values():
            ready = (r for r in pool.order(now_s) if self._places.ready(r.submit.model, begun=r.begun))
            if (first := next(ready, None)) is not None:
                pressing.append(((pool.rank(first, now_s), first.age_from_s, first.order), pool))
        started = (self._start_next(pool, now_s) for _, pool in sorted(pressing, key=lambda one: one[0]))
        return next((start for start in started if start is not None), None)

    def _suspects_first(self) -> list[Request] | None:
        """Suspects that may start, empty when all have to wait: one of them is tried at a time, beside none but those
        that have proved themselves. None: no suspect can go now."""
        if any(pool.running.keys() & self._suspects for pool in self._all()):
            return []
        known = [self._requests[request_id] for request_id in self._suspects]
        ready = [
            r
            for r in known
            if self._free(self._pool_of(r.submit)) > 0 and self._places.ready(r.submit.model, begun=True)
        ]
        if not ready:
            return None
        unknown = any(pool.running.keys() - self._proved for pool in self._all())
        return [] if unknown else sorted(ready, key=lambda request: request.order)

    def _start_suspect(self, suspects: list[Request], now_s: float) -> list[Effect]:
        for request in suspects[:1]:
            generates = request.submit.lane == "generation"
            placement = self._places.place(request.submit.request_id, now_s) if generates else None
            return [self._begin(self._pool_of(request.submit), request, placement, now_s)]
        return []

    def _start_next(self, pool: Pool, now_s: float) -> Start | None:
        if self._free(pool) <= 0 or not pool.waiting:
            return None
        only_begun = False
        for request in pool.order(now_s):
            submit = request.submit
            overdue = pool.rank(request, now_s) == OVERDUE
            if (only_begun and not request.begun) or self._free(pool) <= self._held_against(pool, request, now_s):
                continue
            if not self._places.ready(submit.model, begun=request.begun):
                continue  # not even an overdue one holds others back: it waits for no place of theirs
            placement: object | None = None
            if submit.lane == "generation":
                placement = self._places.place(submit.request_id, now_s)
                request.unplaced = placement is None
                if placement is None:
                    # What an overdue one needs must not go to smaller ones again and again. With nothing under way
                    # that could free it, holding the others back would help nobody.
                    only_begun |= overdue and bool(pool.running or any(r.begun for r in pool.waiting))
                    continue
            return self._begin(pool, request, placement, now_s)
        return None

    def _begin(self, pool: Pool, request: Request, placement: object | None, now_s: float) -> Start:
        submit = request.submit
        resumed = request.begun
        pool.started(request, now_s)
        if not resumed:
            self._fit_deadline(pool, request, now_s)
            request.charged = work_tokens(submit.tokens, request.cut_tokens or submit.max_new_tokens)
            pool.shares.start(submit.client, request.charged)
        return Start(submit.request_id, placement, request.waited_s, request.cut_tokens, resumed)

    def _fit_deadline(self, pool: Pool, request: Request, now_s: float) -> None:
        """Cut the answer to what fits before a soft deadline. Where not even a useful beginning fits, that is what
        it gets, late: ending it at the deadline would give nothing at all."""
        deadline, wanted = request.submit.deadline, request.submit.max_new_tokens or math.inf
        if deadline is None or not request.cuts_tokens:
            return
        tokens = pool.rates.tokens_within(deadline.at_s - now_s, request.submit.tokens)
        if deadline.at_s <= now_s or (tokens is not None and tokens < LEAST_NEW_TOKENS):
            tokens = LEAST_NEW_TOKENS
        else:
            request.soft_due_s = deadline.at_s
        if tokens is not None and tokens < wanted:
            request.cut_tokens = tokens

    def _preempt(self, pool: Pool, now_s: float) -> list[Effect]:
        """Pause background generations for interactive ones that wait for nothing but a compute slot."""
        rested = [r for r in self._in_the_way(pool) if _may_pause(r) and _rested_s(r) <= now_s]
        # The one that has run longest since it last waited: all take their turns.
        chosen = sorted(rested, key=lambda r: (r.since_s, r.order))[: self._pauses_wanted(pool, now_s)]
        for request in chosen:
            request.pausing = True
        return [Pause(request.submit.request_id) for request in chosen]

    def _pauses_wanted(self, pool: Pool, now_s: float) -> int:
        """How many generations must let go for the interactive requests that freed compute slots would start, beyond
        those whose slots come free anyway."""
        free = self._free(pool)
        if free > 0:
            return 0
        in_need = sum(
            request.submit.priority == "interactive"
            and request.submit.lane == "generation"
            and not request.unplaced
            and self._places.ready(request.submit.model, begun=request.begun)
            and not self._held_against(pool, request, now_s)
            for request in pool.waiting
        )
        if not (startable := min(in_need, self._slots(pool))):
            return 0
        return max(0, startable - free - sum(request.leaving for request in self._in_the_way(pool)))

    def _held_against(self, pool: Pool, request: Request, now_s: float) -> int:
        rank = pool.rank(request, now_s)
        if rank == OVERDUE:
            return 0
        return pool.reservations.held_against(request.submit.client, rank, self._slots(pool))

    # --- compute slots, and the limit for all of them ---

    def _free(self, pool: Pool) -> int:
        if self._limit is None or pool is self._runs:
            return pool.free
        return min(pool.free, self._room())

    def _slots(self, pool: Pool) -> int:
        return pool.slots if self._limit is None or pool is self._runs else min(pool.slots, self._limit)

    def _room(self) -> int:
        """How many more generations the limit allows."""
        running = sum(len(pool.running) for pool in self._pools.values())
        return sys.maxsize if self._limit is None else self._limit - running

    def _in_the_way(self, pool: Pool) -> list[Request]:
        """What runs where the pool's next request waits to: in its own slots, or anywhere below the limit."""
        if pool is self._runs or pool.free <= self._room():
            return list(pool.running.values())
        return [request for other in self._pools.values() for request in other.running.values()]

    # --- the bounded queue ---

    def _queue(self) -> list[Request]:
        return [request for pool in self._all() for request in pool.waiting if not request.begun]

    def _least_wanted(self, newcomer: Request, now_s: float) -> Request:
        """Who leaves a full queue: the newest background request, where the newcomer's class is higher. Background
        is what its sender can repeat later; requests of the other classes, those that aged into them and those that
        were begun keep what they were promised."""
        background = CLASS["background"]
        if CLASS[newcomer.submit.priority] < background:
            for request in sorted(self._queue(), key=lambda r: -r.order):
                if self._pool_of(request.submit).rank(request, now_s) == background:
                    return request
        return newcomer

    def _reject(self, request: Request, now_s: float) -> Reject:
        pool = self._pool_of(request.submit)
        position = pool.order(now_s).index(request) + 1
        ages_s = [running.ran_s + now_s - running.since_s for running in pool.running.values()]
        retry_after_s = pool.rates.retry_after_s(position, pool.slots, ages_s)
        self._leave(request, now_s, answered=False)
        return Reject(request.submit.request_id, len(self._queue()), position, retry_after_s)

    # --- inside ---

    def _leave(self, request: Request, now_s: float, *, answered: bool) -> None:
        """The one way out, for every request and from every state."""
        submit = request.submit
        pool = self._pool_of(submit)
        if request.begun:
            pool.places_changed()
        if request.running:
            pool.stopped(request, now_s)
        elif request in pool.waiting:
            pool.waiting.remove(request)
        del self._requests[submit.request_id]
        self._suspects.discard(submit.request_id)
        self._proved.discard(submit.request_id)
        self._dated.pop(submit.request_id, None)
        pool.shares.leave(submit.client)
        pool.segments.left(submit.client, submit.conversation, now_s, answered=answered)

    def _all(self) -> list[Pool]:
        return [*self._pools.values(), self._runs]

    def _pool(self, model: str) -> Pool:
        if model not in self._pools:
            self._pools[model] = self._new_pool(model)
        return self._pools[model]

    def _pool_of(self, submit: Submit) -> Pool:
        return self._pool(submit.model) if submit.lane == "generation" else self._runs

    def _new_pool(self, name: str) -> Pool:
        return Pool(name, aging_s=self._aging_s, utilisation=self._utilisation)


def _may_pause(request: Request) -> bool:
    return request.submit.priority == "background" and request.submit.lane == "generation" and not request.leaving


def _rested_s(request: Request) -> float:
    """From when on a running generation may be paused."""
    return request.since_s + PAUSE_INTERVAL_S
