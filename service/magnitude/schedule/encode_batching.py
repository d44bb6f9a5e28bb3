"""Which texts of which requests go to an encoder together. A pure state machine.

Texts of all requests for one model are gathered into batches, each small enough to be one run of the engine. A
batch is closed at once when the engine has nothing else to do; while it is busy, when the batch is full (by texts
or by padded tokens) or when its oldest request has waited for `wait_s`. At most `in_flight` batches are with the
engine: the more it has to do, the longer the rest gathers, and the fuller its batches become.

Two lines take turns in choosing a batch's first text: the oldest request, and the most urgent one, among equals the
one whose client, and which itself, has got least so far. So a large request is computed piece by piece and small ones
overtake it, and yet every other batch moves the oldest request on, whatever arrives. The other places of a batch go
round among all requests, one text each.

`apply(event, now_s)` returns effects and does nothing else; `EncodeGate` carries them out.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

import msgspec

from magnitude.engine.encoder_buckets import MAX_PADDING, MAX_RUN_TOKENS, bucket_tokens, may_join
from magnitude.schedule.inference import Priority

# One that runs and one that is ready to follow, so that the engine never waits for the service between two.
IN_FLIGHT = 2

_RANKS: dict[Priority, int] = {"interactive": 0, "normal": 1, "background": 2}


class EncodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`max_batch` texts and `max_batch_tokens` padded tokens a batch; of these at most `max_padding` is padding
    between texts of different lengths. `max_queue` requests may wait."""

    max_batch: int = 16
    max_batch_tokens: int = MAX_RUN_TOKENS
    max_padding: float = MAX_PADDING
    wait_s: float = 0.005
    in_flight: int = IN_FLIGHT
    max_queue: int = 64


class EncodeJob(msgspec.Struct, frozen=True):
    """A request: the lengths of its texts, for a model that takes `max_tokens` a text."""

    request_id: int
    model: str
    lengths: tuple[int, ...]
    max_tokens: int
    priority: Priority = "normal"
    client: str = ""


class Withdraw(msgspec.Struct, frozen=True):
    """The client is gone: nothing of the request is wanted any more."""

    request_id: int


class BatchDone(msgspec.Struct, frozen=True):
    batch_id: int
    run_s: float


class BatchFailed(msgspec.Struct, frozen=True):
    """`retry_alone`: the engine is well, so another request's text may be to blame; each is tried by itself."""

    batch_id: int
    retry_alone: bool


class EngineLoad(msgspec.Struct, frozen=True):
    """Whether the engine has other work than these batches."""

    busy: bool


class Tick(msgspec.Struct, frozen=True):
    """Time has passed: `next_wake_s` is reached."""


Event = EncodeJob | Withdraw | BatchDone | BatchFailed | EngineLoad | Tick


class Part(msgspec.Struct, frozen=True):
    """Texts `indices` of one request, in the order in which they stand in the batch."""

    request_id: int
    indices: tuple[int, ...]


class RunBatch(msgspec.Struct, frozen=True):
    """Send these texts to the engine: part after part, `rows` texts padded to `padded_tokens`. `priority` is the
    highest of its requests'."""

    batch_id: int
    model: str
    parts: tuple[Part, ...]
    padded_tokens: int
    priority: Priority = "normal"

    @property
    def rows(self) -> int:
        return sum(len(part.indices) for part in self.parts)


class CancelBatch(msgspec.Struct, frozen=True):
    """Nobody wants the batch any more; `BatchFailed` or `BatchDone` still follows."""

    batch_id: int


class Complete(msgspec.Struct, frozen=True):
    """All texts of the request are computed. `run_s` is the time of the runs that it took part in, `queue_s` the
    rest of the time since it came; `rows` is how many texts these runs had, on average."""

    request_id: int
    queue_s: float
    run_s: float
    rows: float


class Fail(msgspec.Struct, frozen=True):
    """The request has failed with the error of that batch."""

    request_id: int
    batch_id: int


class Refuse(msgspec.Struct, frozen=True):
    """The queue is full; `waiting` requests are ahead."""

    request_id: int
    waiting: int


Effect = RunBatch | CancelBatch | Complete | Fail | Refuse


class _Request:
    """`waiting` are `(length, index)` of the texts that are in no batch, shortest first."""

    __slots__ = ("alone", "batches", "in_batches", "job", "rows", "run_s", "served_tokens", "since_s", "waiting")

    def __init__(self, job: EncodeJob, since_s: float) -> None:
        self.job = job
        self.since_s = since_s
        self.waiting = sorted((length, index) for index, length in enumerate(job.lengths))
        self.in_batches: set[int] = set()
        self.served_tokens = 0
        self.run_s = 0.0
        self.batches = 0
        self.rows = 0
        self.alone = False  # a batch with it failed: no text of another request may join it


class _Filling:
    """A batch while it is put together."""

    def __init__(self, limits: EncodeLimits, max_tokens: int) -> None:
        self._limits = limits
        self._max_tokens = max_tokens
        self.rows: list[tuple[int, int]] = []  # (request, index)
        self.filled = 0
        self.padded = 0

    @property
    def full(self) -> bool:
        """Whether not even a text of the same bucket has room."""
        rows = len(self.rows)
        return rows >= self._limits.max_batch or (rows + 1) * self.padded > self._limits.max_batch_tokens

    def add(self, request_id: int, length: int, index: int) -> bool:
        if len(self.rows) >= self._limits.max_batch:
            return False
        joined = may_join(
            rows=len(self.rows),
            filled=self.filled,
            padded=self.padded,
            length=length,
            max_tokens=self._max_tokens,
            max_run_tokens=self._limits.max_batch_tokens,
            max_padding=self._limits.max_padding,
        )
        if not joined:
            return False
        self.rows.append((request_id, index))
        self.filled += bucket_tokens(length, self._max_tokens)
        self.padded = joined
        return True


class EncodeBatching:
    """The requests for all encoders of one engine."""

    def __init__(self, limits: EncodeLimits) -> None:
        self._limits = limits
        self._requests: dict[int, _Request] = {}  # in the order of their arrival
        self._batches: dict[int, RunBatch] = {}
        self._last_batch_id = 0
        self._busy = False
        # Whether the oldest request is next to choose a batch's first text, by model: not after it just did.
        self._oldest_next: dict[str, bool] = {}

    def tune(self, limits: EncodeLimits) -> None:
        """Limits that count from the next batch on."""
        self._limits = limits

    @property
    def waiting(self) -> int:
        """Requests of which some text is in no batch yet."""
        return sum(1 for request in self._requests.values() if request.waiting)

    @property
    def in_flight(self) -> int:
        return len(self._batches)

    def next_wake_s(self) -> float | None:
        """When to say `Tick` (monotonic), unless another event comes first; None: only another event helps."""
        if len(self._batches) >= self._limits.in_flight:
            return None
        waiting = [request.since_s for request in self._requests.values() if request.waiting]
        return min(waiting) + self._limits.wait_s if waiting else None

    def apply(self, event: Event, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case EncodeJob():
                effects += self._arrived(event, now_s)
            case Withdraw(request_id):
                effects += self._withdrawn(request_id)
            case BatchDone(batch_id, run_s):
                effects += self._done(batch_id, run_s, now_s)
            case BatchFailed(batch_id, retry_alone):
                effects += self._failed(batch_id, retry_alone=retry_alone)
            case EngineLoad(busy):
                self._busy = busy
            case Tick():
                pass
        effects += self._release(now_s)
        if isinstance(event, EncodeJob):
            effects += self._refuse(event.request_id)
        return effects

    def _arrived(self, job: EncodeJob, now_s: float) -> list[Effect]:
        if not job.lengths:
            return [Complete(job.request_id, 0.0, 0.0, 0.0)]
        self._requests[job.request_id] = _Request(job, now_s)
        return []

    def _refuse(self, request_id: int) -> list[Effect]:
        """Only what could not start at once counts against the queue."""
        request = self._requests.get(request_id)
        waiting = self.waiting
        if request is None or request.in_batches or waiting <= self._limits.max_queue:
            return []
        del self._requests[request_id]
        return [Refuse(request_id, waiting - 1)]

    def _withdrawn(self, request_id: int) -> list[Effect]:
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        return [
            CancelBatch(batch_id)
            for batch_id in sorted(request.in_batches)
            if not any(part.request_id in self._requests for part in self._batches[batch_id].parts)
        ]

    def _done(self, batch_id: int, run_s: float, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        batch = self._batches.get(batch_id)
        if batch is None:
            return []
        for request in self._ended(batch_id):
            request.run_s += run_s
            request.batches += 1
            request.rows += batch.rows
            if not request.waiting and not request.in_batches:
                request_id = request.job.request_id
                del self._requests[request_id]
                queue_s = max(0.0, now_s - request.since_s - request.run_s)
                effects.append(Complete(request_id, queue_s, request.run_s, request.rows / request.batches))
        return effects

    def _failed(self, batch_id: int, *, retry_alone: bool) -> list[Effect]:
        batch = self._batches.get(batch_id)
        if batch is None:
            return []
        requests = self._ended(batch_id)
        if retry_alone and len(batch.parts) > 1:
            for part in batch.parts:
                request = self._requests.get(part.request_id)
                if request is not None:
                    request.alone = True
                    for index in part.indices:
                        insort(request.waiting, (request.job.lengths[index], index))
            return []
        effects: list[Effect] = []
        for request in requests:
            request_id = request.job.request_id
            effects.append(Fail(request_id, batch_id))
            effects += self._withdrawn(request_id)
        return effects

    def _ended(self, batch_id: int) -> list[_Request]:
        """Forget the batch; its requests that are still wanted."""
        batch = self._batches.pop(batch_id, None)
        parts = batch.parts if batch is not None else ()
        requests = [self._requests[part.request_id] for part in parts if part.request_id in self._requests]
        for request in requests:
            request.in_batches.discard(batch_id)
        return requests

    # --- batches ---

    def _release(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        while len(self._batches) < self._limits.in_flight:
            batch = next(self._ready(now_s), None)
            if batch is None:
                break
            self._take(batch)
            effects.append(batch)
        return effects

    def _ready(self, now_s: float) -> Iterator[RunBatch]:
        """Batches that need not wait any longer: the model whose oldest request has waited longest comes first."""
        idle = not self._busy and not self._batches
        by_model: dict[str, list[_Request]] = {}
        for request in self._requests.values():
            if request.waiting:
                by_model.setdefault(request.job.model, []).append(request)
        for model, requests in by_model.items():
            due = now_s - requests[0].since_s >= self._limits.wait_s
            filling = self._fill(requests)
            if idle or due or filling.full:
                parts = _parts(filling.rows)
                priority = min(
                    (self._requests[part.request_id].job.priority for part in parts), key=_RANKS.__getitem__
                )
                yield RunBatch(self._last_batch_id + 1, model, parts, filling.padded, priority)

    def _fill(self, requests: Sequence[_Request]) -> _Filling:
        line = sorted(requests, key=self._claim)  # stable: the older one first
        first = requests[0] if self._oldest_next.get(requests[0].job.model, True) else line[0]
        filling = _Filling(self._limits, first.job.max_tokens)
        length, index = first.waiting[0]
        filling.add(first.job.request_id, length, index)
        if first.alone:
            line = [first]
        left = {r.job.request_id: list(r.waiting) for r in line if r is first or not r.alone}
        left[first.job.request_id].pop(0)
        added = True
        while added:
            added = False
            for request_id, texts in left.items():
                added |= _add_nearest(filling, request_id, texts)
        return filling

    def _claim(self, request: _Request) -> tuple[int, int, int]:
        job = request.job
        of_client = sum(r.served_tokens for r in self._requests.values() if r.job.client == job.client)
        return _RANKS[job.priority], of_client, request.served_tokens

    def _take(self, batch: RunBatch) -> None:
        self._last_batch_id = batch.batch_id
        self._batches[batch.batch_id] = batch
        oldest = next(r for r in self._requests.values() if r.waiting and r.job.model == batch.model)
        self._oldest_next[batch.model] = batch.parts[0].request_id != oldest.job.request_id
        for part in batch.parts:
            request = self._requests[part.request_id]
            request.in_batches.add(batch.batch_id)
            request.served_tokens += len(part.indices) * batch.padded_tokens
            taken = set(part.indices)
            request.waiting = [text for text in request.waiting if text[1] not in taken]


def _add_nearest(filling: _Filling, request_id: int, texts: list[tuple[int, int]]) -> bool:
    """Move the text that fits the batch best from `texts` (shortest first) into it: the longest that needs no
    longer padding, else the next longer one."""
    above = bisect_right(texts, (filling.padded, _ANY_INDEX))
    for place in (above - 1, above):
        if 0 <= place < len(texts) and filling.add(request_id, *texts[place]):
            texts.pop(place)
            return True
    return False


# Above every index, so that a text of exactly the padded length still counts as fitting.
_ANY_INDEX = 1 << 62


def _parts(rows: Sequence[tuple[int, int]]) -> tuple[Part, ...]:
    by_request: dict[int, list[int]] = {}
    for request_id, index in rows:
        by_request.setdefault(request_id, []).append(index)
    return tuple(Part(request_id, tuple(indices)) for request_id, indices in by_request.items())
