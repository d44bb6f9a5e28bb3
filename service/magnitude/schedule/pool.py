"""One pool of compute slots: who holds them, who waits, and in which order.

Each decoder model is a pool, and the encoder and tensor runs together are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from magnitude.schedule.events import Submit
from magnitude.schedule.fair_share import FairShare
from magnitude.schedule.rates import Rates
from magnitude.schedule.reservations import CLASS, Hold, Reservations
from magnitude.schedule.segments import Capacity, SegmentFigures, Segments

# Aging lifts a request up to the class of interactive ones, where fair shares still rule. One whose client was not
# served there for so many agings goes before everybody, oldest first: that alone bounds every wait, whatever the
# load, and is far enough out (a minute by default) not to disturb the shares of long generations before that.
OVERDUE_AGINGS = 6
OVERDUE = -1


class Request(msgspec.Struct, eq=False):
    """A request from its arrival to its end, in whichever state. Times are monotonic."""

    submit: Submit
    order: int  # of arrival
    continuing: bool
    arrived_s: float
    since_s: float  # when its present state began
    urgent_s: float  # when it is due, for the order among equals
    age_from_s: float  # aging counts from here: its arrival, or its client's last start in its class
    waited_s: float = 0.0  # before its present state
    ran_s: float = 0.0  # likewise
    begun: bool = False  # it ran before: paused, it keeps its place
    charged: float = 0.0  # work on its client's account
    cut_tokens: int | None = None
    soft_due_s: float = math.inf  # when a running answer is ended for its soft deadline
    running: bool = False
    pausing: bool = False
    interrupted: bool = False
    expired: bool = False
    unplaced: bool = False  # it found a compute slot, but no KV slot

    @property
    def leaving(self) -> bool:
        """Whether its slot comes free soon, by what was asked of the engine or of the dispatcher."""
        return self.pausing or self.interrupted or self.expired

    @property
    def hard_due_s(self) -> float:
        deadline = self.submit.deadline
        return deadline.at_s if deadline is not None and deadline.hard else math.inf

    @property
    def cuts_tokens(self) -> bool:
        deadline = self.submit.deadline
        return deadline is not None and not deadline.hard and "tokens" in deadline.may_cut


class PoolFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one pool, for metrics and the admin. `name` is the model's; "" are encoder and tensor runs.
    `waiting` counts by class and includes those that are `paused`."""

    name: str
    compute_slots: int
    running: int
    waiting: dict[str, int]
    paused: int
    reservations: tuple[Hold, ...]
    capacity: Capacity
    segments: tuple[SegmentFigures, ...]
    run_s: float
    decode_tokens_per_s: float


class Pool:
    """Compute slots with a queue in front. `order` decides nothing but who is next; admission does the rest."""

    def __init__(self, name: str, *, aging_s: float, utilisation: float) -> None:
        self.name = name
        self.slots = 0
        self.waiting: list[Request] = []
        self.running: dict[int, Request] = {}
        self.shares = FairShare()
        self.rates = Rates()
        self.segments = Segments(utilisation=utilisation)
        self.reservations = Reservations()
        self.tune(aging_s=aging_s, utilisation=utilisation)

    def tune(self, *, aging_s: float, utilisation: float) -> None:
        """Settings that count from the next decision on."""
        self.segments.utilisation = utilisation
        self._aging_s = aging_s
        # How long a request can be passed over at its client's own wish, for a deadline or a conversation.
        self._horizon_s = OVERDUE_AGINGS * aging_s

    @property
    def free(self) -> int:
        return self.slots - len(self.running)

    def arrived(self, submit: Submit, order: int, now_s: float) -> Request:
        """A new request joins those that wait."""
        # Without a deadline it counts as due after the horizon, so that a client's stream of deadlines does not pass
        # its other requests for ever; and nothing is due before it came.
        urgent_s = now_s + self._horizon_s
        if submit.deadline is not None:
            urgent_s = min(max(submit.deadline.at_s, now_s), urgent_s)
        request = Request(
            submit=submit,
            order=order,
            continuing=submit.continuing or self.segments.knows(submit.client, submit.conversation),
            arrived_s=now_s,
            since_s=now_s,
            urgent_s=urgent_s,
            age_from_s=now_s,
        )
        self.waiting.append(request)
        self.shares.enter(submit.client)
        self.segments.arrived(submit.client, submit.conversation, submit.task, now_s)
        return request

    def rank(self, request: Request, now_s: float) -> int:
        """The class in which a waiting request stands now: 0 interactive to 2 background, or `OVERDUE`."""
        agings = math.floor((now_s - request.age_from_s) / self._aging_s)
        return OVERDUE if agings >= OVERDUE_AGINGS else max(0, CLASS[request.submit.priority] - agings)

    def order(self, now_s: float) -> list[Request]:
        """Who waits, next one first: by class; in it those that were paused, then (while more conversations are
        alive than the limit) those that continue one, then the client with the least work, then the most urgent."""
        capacity = self.segments.capacity(self.slots, now_s)
        crowded = capacity.alive > capacity.limit

        def key(request: Request) -> tuple[float, ...]:
            rank = self.rank(request, now_s)
            if rank == OVERDUE:
                return (rank, request.age_from_s, request.urgent_s, request.order)
            begins = crowded and not request.continuing and now_s - request.arrived_s < self._horizon_s
            work = self.shares.work(request.submit.client)
            return (rank, not request.begun, begins, work, request.urgent_s, request.order)

        return sorted(self.waiting, key=key)

    def started(self, request: Request, now_s: float) -> None:
        """The request moves from the queue into a slot."""
        submit = request.submit
        self.waiting.remove(request)
        self.running[submit.request_id] = request
        request.waited_s += max(0.0, now_s - request.since_s)
        request.since_s = now_s
        request.running = True
        request.unplaced = False
        if request.begun:
            return
        request.begun = True
        self.reservations.started(submit.client)
        # A client that is being served does not grow old: without this, the backlog of a busy client would pass
        # everybody else's requests by its age.
        for other in self.waiting:
            same = other.submit.client == submit.client and other.submit.priority == submit.priority
            if same and not other.begun:
                other.age_from_s = now_s

    def stopped(self, request: Request, now_s: float) -> None:
        """The request leaves its slot, for good or to wait again."""
        del self.running[request.submit.request_id]
        request.ran_s += max(0.0, now_s - request.since_s)
        request.since_s = now_s
        request.running = request.pausing = False

    def places_changed(self) -> None:
        """Those that found no KV slot may find one now."""
        for request in self.waiting:
            request.unplaced = False

    def next_aging_s(self, now_s: float) -> float:
        """When the next waiting request rises by a class; after `now_s`."""
        return min((self._rises_s(request, now_s) for request in self.waiting), default=math.inf)

    def figures(self, now_s: float) -> PoolFigures:
        token_s = self.rates.decode_token_s.value
        return PoolFigures(
            name=self.name,
            compute_slots=self.slots,
            running=len(self.running),
            waiting=_by_class(self.waiting),
            paused=sum(request.begun for request in self.waiting),
            reservations=self.reservations.all(),
            capacity=self.segments.capacity(self.slots, now_s),
            segments=self.segments.figures(),
            run_s=self.rates.run_s.value,
            decode_tokens_per_s=1.0 / token_s if token_s > 0 else 0.0,
        )

    def _rises_s(self, request: Request, now_s: float) -> float:
        agings = math.floor((now_s - request.age_from_s) / self._aging_s)
        rises_s = request.age_from_s + (agings + 1) * self._aging_s
        return rises_s if rises_s > now_s else now_s + self._aging_s


def _by_class(requests: Iterable[Request]) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(CLASS, 0)
    for request in requests:
        counts[request.submit.priority] += 1
    return counts
