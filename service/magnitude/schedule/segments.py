"""Compute and wait segments of conversations, and how many conversations the compute slots can carry.

A conversation computes while a request of it is open, and waits (for a tool, for a person) between two requests.
Waiting holds no compute. With `slots` compute slots, a conversation that computes for T_compute and then waits for
T_wait uses a slot for T_compute / (T_compute + T_wait) of the time, so that

    conversations = slots * (1 + T_wait / T_compute)

keep all slots busy without queueing, if arrivals were perfectly even. They are not, so the limit is a share
(`utilisation`, 0.7) of that: a queue in front of a resource that is busy 70 % of the time stays short, and grows
without bound towards 100 %.
"""

from __future__ import annotations

import msgspec

from magnitude.schedule.rates import Mean

# Conversations remembered at most, a few hundred bytes each; far more than a board's agents.
REMEMBERED_CONVERSATIONS = 1024

# Kinds of task told apart; clients name them, so there must be a bound. Further ones count as `OTHER`.
REMEMBERED_KINDS = 32
OTHER = "other"

# A longer silence is somebody who left, not a tool that runs: it is no sample, and the conversation is over.
LONGEST_WAIT_S = 600.0

# A conversation counts as alive for so many mean waits. Were waits exponential, 98 of 100 would be back by then.
PATIENCE = 4.0
SHORTEST_PATIENCE_S = 10.0
# Before any wait was measured: long enough for a person to answer.
FIRST_PATIENCE_S = 60.0


class SegmentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Means of one kind of task, recent samples weighing more."""

    task: str
    compute_s: float
    compute_samples: int
    wait_s: float
    wait_samples: int


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """`conversations` would keep `compute_slots` busy; up to `limit` of them are taken in freely; `alive` are there
    now."""

    compute_slots: int
    conversations: float
    limit: float
    alive: int


class _Times:
    def __init__(self) -> None:
        self.compute_s = Mean()
        self.wait_s = Mean()

    @property
    def share(self) -> float:
        """Of its time, what a conversation of this kind spends in a compute slot; 1 as long as nothing is known."""
        busy_s, idle_s = self.compute_s.value, self.wait_s.value
        return busy_s / (busy_s + idle_s) if busy_s > 0 else 1.0

    @property
    def patience_s(self) -> float:
        if not self.wait_s.count:
            return FIRST_PATIENCE_S
        return min(LONGEST_WAIT_S, max(SHORTEST_PATIENCE_S, PATIENCE * self.wait_s.value))


class _Conversation:
    def __init__(self, task: str) -> None:
        self.task = task
        self.open = 0
        self.answered = False  # ever
        self.idle_since_s: float | None = None
        self.wait_counts = False  # whether the present wait began with an answer


class Segments:
    """The conversations of one model. A conversation is named by its client and a name of its own; requests without
    a name ("") only give compute times."""

    def __init__(self, *, utilisation: float = 0.7) -> None:
        self.utilisation = utilisation
        self._times: dict[str, _Times] = {}
        self._conversations: dict[tuple[str, str], _Conversation] = {}

    def knows(self, client: str, name: str) -> bool:
        """Whether a request of this name would continue a conversation."""
        return bool(name) and (client, name) in self._conversations

    def arrived(self, client: str, name: str, task: str, now_s: float) -> None:
        """A request came: a wait segment is over."""
        if not name:
            return
        key = (client, name)
        conversation = self._conversations.pop(key, None) or _Conversation(task)
        self._conversations[key] = conversation  # last in the order in which they are forgotten
        conversation.task = task
        if conversation.idle_since_s is not None:
            waited_s = now_s - conversation.idle_since_s
            if conversation.wait_counts and 0 <= waited_s <= LONGEST_WAIT_S:
                self._of(task).wait_s.add(waited_s)
            conversation.idle_since_s = None
        conversation.open += 1
        if len(self._conversations) > REMEMBERED_CONVERSATIONS:
            idle = (other for other, held in self._conversations.items() if not held.open)
            oldest = next(idle, None)
            if oldest is not None:
                del self._conversations[oldest]

    def computed(self, task: str, compute_s: float) -> None:
        """A compute segment took so long."""
        self._of(task).compute_s.add(compute_s)

    def left(self, client: str, name: str, now_s: float, *, answered: bool) -> None:
        """A request is over, and with the last open one a wait segment begins. What follows a request without an
        answer is a retry, not a wait; a conversation that never got one has nothing to continue and is forgotten."""
        conversation = self._conversations.get((client, name))
        if conversation is None:
            return
        conversation.open -= 1
        conversation.answered |= answered
        if conversation.open:
            return
        conversation.idle_since_s, conversation.wait_counts = now_s, answered
        if not conversation.answered:
            del self._conversations[client, name]

    def alive(self, now_s: float) -> int:
        """Conversations that compute, or wait and will probably be back."""
        return sum(self._is_alive(conversation, now_s) for conversation in self._conversations.values())

    def capacity(self, compute_slots: int, now_s: float) -> Capacity:
        """What `compute_slots` carry, by the mix of conversations that are alive: slots / mean share of time in a
        slot, which is slots * (1 + T_wait / T_compute) where all are of one kind."""
        alive = [held.task for held in self._conversations.values() if self._is_alive(held, now_s)]
        kinds = alive or list(self._times)
        share = sum(self._of(task).share for task in kinds) / len(kinds) if kinds else 1.0
        conversations = compute_slots / share
        return Capacity(
            compute_slots=compute_slots,
            conversations=conversations,
            limit=self.utilisation * conversations,
            alive=len(alive),
        )

    def expected_wait_s(self, task: str) -> float | None:
        """Mean wait segment of that kind of task; None before the first."""
        times = self._times.get(task)
        return times.wait_s.value if times is not None and times.wait_s.count else None

    def figures(self) -> tuple[SegmentFigures, ...]:
        return tuple(
            SegmentFigures(
                task=task,
                compute_s=times.compute_s.value,
                compute_samples=times.compute_s.count,
                wait_s=times.wait_s.value,
                wait_samples=times.wait_s.count,
            )
            for task, times in self._times.items()
        )

    def _of(self, task: str) -> _Times:
        if task not in self._times and len(self._times) >= REMEMBERED_KINDS:
            task = OTHER
        return self._times.setdefault(task, _Times())

    def _is_alive(self, conversation: _Conversation, now_s: float) -> bool:
        if conversation.open or conversation.idle_since_s is None:
            return True
        return now_s - conversation.idle_since_s <= self._of(conversation.task).patience_s
