"""Writes down how engines were lost: gathers what is at hand at once, and writes it in a thread.

Bounded in number, size and age, and in how often: an engine that dies at every start must not wear the flash out.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from magnitude.board.boot import Clocks, age_s
from magnitude.board.storage import free_bytes
from magnitude.engine.protocol import Heartbeat, Steps
from magnitude.feedback.bundles import (
    Beat,
    BundleRefused,
    FailedRequest,
    FailureBundle,
    RunsSeen,
    ServedModel,
    Victim,
    WorkMessage,
    bundle_files,
    content_bytes,
    encoded,
    file_name,
    number_of,
    read_bundle,
    shape_of,
)
from magnitude.feedback.circumstances import Circumstances
from magnitude.feedback.run_series import RunFigures
from magnitude.governor.memory_state import MemoryState
from magnitude.persist import write_atomic
from magnitude.supervise.loss import EngineLoss

log = logging.getLogger(__name__)

# Heartbeats come twice a second: the last minute, which is as long as a step may take by default.
BEATS_KEPT = 120
# Of what is alike in each loss the newest dozens tell the story.
MAX_BUNDLES = 50
# The first losses say why; a dozen an hour is one at each of the longest back-offs that matter.
MAX_PER_HOUR = 12
HOUR_S = 3600.0
# Content of one loss: the prompts of a batch of long contexts fit, tensors of images may not.
MAX_CONTENT_BYTES = 4 * 1024 * 1024
# A bundle that the storage refused is tried again after a minute, then after twice as long each time.
RETRY_FIRST_S = 60.0
RETRY_MAX_S = 3600.0
STOP_S = 5.0


class FailureLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`max_bytes` 0: nothing is written."""

    max_bytes: int = 16 * 1024 * 1024
    keep_s: float = 30 * 86400.0
    reserve_bytes: int = 64 * 1024 * 1024
    keep_content: bool = False


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked what at a loss. All answer at once, on the event loop."""

    models: Callable[[], Sequence[ServedModel]]
    circumstances: Callable[[], Circumstances]
    last_lines: Callable[[], Sequence[str]]
    figures: Callable[[], list[RunFigures]]
    versions: Callable[[], dict[str, str]]
    memory: Callable[[], MemoryState]
    headroom_bytes: Callable[[], int | None]
    step_deadline_s: float


class FailureLog:
    """The losses of a service's engines. `off` is empty while they are written, otherwise the reason."""

    def __init__(
        self, folder: Path, limits: FailureLimits, surroundings: Surroundings, *, clocks: Clocks | None = None
    ) -> None:
        self.folder = folder
        self.off = ""
        self._limits = limits
        self._surroundings = surroundings
        self._clocks = clocks or Clocks()
        self._beats: deque[Beat] = deque(maxlen=BEATS_KEPT)
        self._runs: deque[RunsSeen] = deque(maxlen=BEATS_KEPT)
        self._written_s: deque[float] = deque(maxlen=MAX_PER_HOUR)
        self._skipped = 0
        self._writer: ThreadPoolExecutor | None = None
        self._under_way: set[Future[None]] = set()
        self._refused: FailureBundle | None = None  # the newest that could not be written
        self._refusals = 0
        self._retry_at_s = 0.0

    # --- on the event loop ---

    def beat(self, heartbeat: Heartbeat) -> None:
        """The engine breathes. Also the moment to try again what the storage refused."""
        now_s = self._clocks.monotonic()
        refused = self._refused
        if refused is not None and now_s >= self._retry_at_s:
            self._refused = None
            self._submit(refused)
        self._beats.append(
            Beat(
                at_s=now_s,
                steps=heartbeat.steps,
                open_requests=heartbeat.open_requests,
                busy_s=heartbeat.busy_s,
                rss_bytes=heartbeat.rss_bytes,
                headroom_bytes=self._surroundings.headroom_bytes(),
            )
        )

    def runs(self, steps: Steps) -> None:
        """The engine has reported what it did."""
        self._runs.append(RunsSeen(at_s=self._clocks.monotonic(), groups=steps.groups))

    def engine_lost(self, loss: EngineLoss, victims: Sequence[Victim]) -> None:
        """Write down the loss and the requests that it hit. Returns at once. A planned replacement is no loss."""
        beats, runs = list(self._beats), list(self._runs)
        self._beats.clear()  # the next engine counts anew
        self._runs.clear()
        if loss.cause == "recycled" or not self._limits.max_bytes:
            return
        now = self._clocks.now()
        recent = len(self._written_s) == MAX_PER_HOUR and now.at_s - self._written_s[0] < HOUR_S
        if recent:
            self._skipped += 1
            log.warning("too many engines are lost to write down each", extra={"fields": {"skipped": self._skipped}})
            return
        self._written_s.append(now.at_s)
        requests, notes = self._requests(victims)
        if self._skipped:
            notes.append(f"{self._skipped} losses before this one were not written down")
            self._skipped = 0
        around = self._surroundings
        bundle = FailureBundle(
            bundle_id="",
            stamp=now,
            loss=loss,
            versions=around.versions(),
            requests=requests,
            models=list(around.models()),
            circumstances=around.circumstances(),
            memory=around.memory(),
            step_deadline_s=around.step_deadline_s,
            series=beats,
            last_runs=runs,
            figures=around.figures(),
            last_lines=list(around.last_lines()),
            notes=notes,
        )
        self._submit(bundle)

    def close(self, timeout_s: float = STOP_S) -> None:
        """Returns when what is under way is written, or the storage takes too long. Blocks."""
        if self._writer is None:
            return
        until_s = time.monotonic() + timeout_s
        for written in list(self._under_way):
            try:
                written.result(max(0.0, until_s - time.monotonic()))
            except TimeoutError:
                log.warning("the last failure was not written down: the storage does not answer")
                break
        self._writer.shutdown(wait=False)
        self._writer = None

    # --- inside ---

    def _submit(self, bundle: FailureBundle) -> None:
        if self._writer is None:
            self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="failures")
        written = self._writer.submit(self._write, bundle)
        self._under_way.add(written)
        written.add_done_callback(self._under_way.discard)

    def _requests(self, victims: Sequence[Victim]) -> tuple[list[FailedRequest], list[str]]:
        requests: list[FailedRequest] = []
        notes: list[str] = []
        room_bytes = MAX_CONTENT_BYTES if self._limits.keep_content else 0
        # Those that were refused first: they are the likeliest reason.
        for victim in sorted(victims, key=lambda victim: (not victim.refused, -victim.strikes)):
            content: WorkMessage | None = None
            if self._limits.keep_content and isinstance(victim.message, WorkMessage):
                size_bytes = content_bytes(victim.message)
                if size_bytes <= room_bytes:
                    content = victim.message
                    room_bytes -= size_bytes
                else:
                    notes.append(f"the content of request {victim.request_id} is too large to keep")
            requests.append(FailedRequest(shape=shape_of(victim), content=content))
        return requests, notes

    # --- in the thread ---

    def _write(self, bundle: FailureBundle) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = bundle_files(self.folder)
            number = (number_of(files[-1].name) or 0) + 1 if files else 1
            bundle = msgspec.structs.replace(bundle, bundle_id=f"{number:06d}-{bundle.loss.cause}")
            data = encoded(bundle)
            if len(data) > self._limits.max_bytes:
                log.warning("a failure is too large to be written down", extra={"fields": {"bytes": len(data)}})
                return
            self._make_room(files, len(data))
            if free_bytes(self.folder) < self._limits.reserve_bytes + len(data):
                raise OSError(0, f"less than {self._limits.reserve_bytes >> 20} MiB would stay free")
            write_atomic(self.folder / file_name(bundle), data, mode=0o600)
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error)
            if not isinstance(error, OSError):
                log.exception("a failure cannot be written down, on an error that nobody foresaw")
            if not self.off:
                log.warning("failures are not written down", extra={"fields": {"why": reason}})
            self.off = reason
            self._retry_at_s = self._clocks.monotonic() + min(
                RETRY_FIRST_S * 2 ** min(self._refusals, 16), RETRY_MAX_S
            )
            self._refusals += 1
            self._refused = bundle
            return
        if self.off:
            log.info("failures are written down again")
        self.off, self._refusals = "", 0
        log.info(
            "failure written down",
            extra={"fields": {"bundle": bundle.bundle_id, "requests": len(bundle.requests), "bytes": len(data)}},
        )

    def _make_room(self, files: list[Path], coming_bytes: int) -> None:
        """Remove what is too old, and the oldest of what is too much."""
        for leftover in self.folder.glob(".*.tmp"):  # of a service that was killed
            leftover.unlink(missing_ok=True)
        now = self._clocks.now()
        kept: list[tuple[Path, int]] = []
        for path in files:
            try:
                age = age_s(read_bundle(path).stamp, now)
            except BundleRefused:
                age = None  # it goes when its turn comes
            if age is not None and age > self._limits.keep_s:
                path.unlink(missing_ok=True)
            else:
                kept.append((path, path.stat().st_size))
        size_bytes = sum(size for _, size in kept) + coming_bytes
        while kept and (size_bytes > self._limits.max_bytes or len(kept) >= MAX_BUNDLES):
            path, size = kept.pop(0)
            path.unlink(missing_ok=True)
            size_bytes -= size
