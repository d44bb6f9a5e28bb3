"""What the strategy loop sees, and what it may ask for. Times are monotonic seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice, Verified
from magnitude.policy.situation import Heat, MemoryLevel, Part, Supply
from magnitude.policy.strategy import Strategy

# --- what it sees ---


class RunsSeen(msgspec.Struct, frozen=True):
    """Graph runs of one kind by one session: `rows` sequences of `tokens` new positions each, `runs` of them in
    `total_s`. `chunk` is the prompt's piece in force. Pauses are in no run's time."""

    part: Part  # decode, prefill or encode
    session: SessionSpec
    rows: int
    tokens: int
    runs: int
    total_s: float
    chunk: int = 0


class TaskSeen(msgspec.Struct, frozen=True):
    """A task is over, run by the strategy of that id. `failed`: timed out, killed, out of memory or refused for want
    of room; cancelled and wrong requests are not told. `run_s` per `units` of work (tokens or positions)."""

    strategy_id: str
    run_s: float
    units: int
    failed: bool


class BoardSeen(msgspec.Struct, frozen=True):
    """The board now, told when something of it changed, and at least every ten seconds while anything runs.

    `cores` are the CPUs by number that the engine may use, fastest clusters first, `big` how many of them are of the
    fastest kind (0: all), `usable` how many may be used at once (quota). `clock_share` is what limits in force leave
    of the highest clock. `prefill_threads` and `decode_threads` are what the thermal governor wishes, None: nothing.
    `smaller`: heat or supply ask for smaller weights. `bandwidth_use` is the share of the memory's bandwidth that
    decoding takes; None: not known.
    """

    cores: tuple[int, ...]
    usable: int
    big: int = 0
    heat: Heat = "cool"
    clock_share: float = 1.0
    memory: MemoryLevel = "ample"
    supply: Supply = "full"
    prefill_threads: int | None = None
    decode_threads: int | None = None
    smaller: bool = False
    bandwidth_use: float | None = None


class LoadSeen(msgspec.Struct, frozen=True):
    """What is open: generations that decode, prompts, texts or tensors that enter, tasks that wait. Told when it
    changed; all zero: idle."""

    decoding: int = 0
    entering: int = 0
    waiting: int = 0


class SessionReady(msgspec.Struct, frozen=True):
    """A session that was asked for is there, and takes `added_bytes`."""

    session: SessionSpec
    added_bytes: int


class SessionFailed(msgspec.Struct, frozen=True):
    """It could not be made. `lasting`: trying again is of no use."""

    session: SessionSpec
    reason: str
    lasting: bool


class SessionChecked(msgspec.Struct, frozen=True):
    verdict: Verified


class ProbeDone(msgspec.Struct, frozen=True):
    """What a probe measured: seconds of each run, by its choices, taken in turn. `complete` False: real work came
    first, and only some rounds were run."""

    probe: Probe
    seconds: tuple[tuple[float, ...], ...]
    complete: bool


class EngineChanged(msgspec.Struct, frozen=True):
    """A new engine serves, with the model's own session only; or there is none (`up` False)."""

    up: bool


class MayExperiment(msgspec.Struct, frozen=True):
    """Whether a new experiment may begin: several models share one board, and one of them may experiment."""

    allowed: bool


class Tick(msgspec.Struct, frozen=True):
    """Time has passed. Told when `wake_s` is reached."""


Event = (
    RunsSeen
    | TaskSeen
    | BoardSeen
    | LoadSeen
    | SessionReady
    | SessionFailed
    | SessionChecked
    | ProbeDone
    | EngineChanged
    | MayExperiment
    | Tick
)

# --- what it asks for ---


class PrepareSession(msgspec.Struct, frozen=True):
    """Make that session in the background, within the memory budget."""

    session: SessionSpec


class DropSession(msgspec.Struct, frozen=True):
    session: SessionSpec


class CheckSession(msgspec.Struct, frozen=True):
    """Compare it with the model's own on the golden set, in idle time."""

    session: SessionSpec


class Trial(msgspec.Struct, frozen=True):
    """One of `every` runs of the part goes to `session` instead of the one in force, so that both can be compared
    under the same load."""

    part: Part
    session: SessionSpec
    every: int


class Use(msgspec.Struct, frozen=True):
    """From the next run on this strategy is in force. `trial`: … but for these runs."""

    strategy: Strategy
    trial: Trial | None = None


class Probe(msgspec.Struct, frozen=True):
    """Time runs by each of the choices in turn while the engine is idle, `rounds` of each; given up when work comes.
    A decode step has `rows` rows, a piece of a prompt as many tokens as its choice's chunk, an encoder's text
    `tokens`. `key` is the situation that it stands for."""

    part: Part
    key: str
    choices: tuple[Choice, ...]
    rows: int
    tokens: int
    rounds: int


# "start": with what a model begins; "situation": the board changed, and the table has another row for it; "switch":
# learned by comparison; "revert": the guard took a switch back; "trial": a comparison begins; "kept": it was not won.
# "pinned", "unpinned", "reset", "imported": a person did it.
DecisionKind = Literal[
    "start",
    "situation",
    "switch",
    "revert",
    "trial",
    "kept",
    "rejected",
    "prepared",
    "retired",
    "pinned",
    "unpinned",
    "reset",
    "imported",
]


class Decided(msgspec.Struct, frozen=True):
    """For the timeline: what was decided, and the figures that spoke for it. `from_id` and `to_id` are choices,
    `delay_s` from the first sample that showed it to the decision, `gain` the expected saving of time (0.1: a
    tenth)."""

    kind: DecisionKind
    part: Part | Literal[""]
    key: str
    from_id: str
    to_id: str
    reason: str
    delay_s: float = 0.0
    gain: float = 0.0


Effect = PrepareSession | DropSession | CheckSession | Use | Probe | Decided
