"""Messages about further sessions of a loaded model: made, compared, measured and used while it serves.

A model's own session comes with `LoadModel`; in these messages it is None. All sessions of a model share its KV
memory and its mapped weights. Runs of all of them are told apart in `Steps` (`StepGroup.session`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.engine.message import Message
from magnitude.engine.session_spec import SessionSpec

# Runs of answers, and all other runs: of prompts, texts and tensors.
RunPhase = Literal["prefill", "decode"]
# Runs whose operators are told apart.
ProfilePhase = Literal["decode", "prefill", "encode"]


class PrepareSession(Message, frozen=True, kw_only=True, tag="prepare_session"):
    """Make a further session, in a thread beside what runs. Answered by `SessionPrepared`, or `Failed`."""

    request_id: int
    model: str
    session: SessionSpec


class SessionPrepared(Message, frozen=True, kw_only=True, tag="session_prepared"):
    """It can be used. `added_bytes`: by how much the engine's own memory has grown for it."""

    request_id: int
    model: str
    load_s: float
    added_bytes: int


class ReleaseSession(Message, frozen=True, kw_only=True, tag="release_session"):
    """Let go of a further session, after the run under way; the model's own stands in. Answered by `Done`, also when
    there is none."""

    request_id: int
    model: str
    session: SessionSpec


class TrialRuns(msgspec.Struct, frozen=True, kw_only=True):
    """One of `every` runs of the phase goes to `session` (None: the model's own)."""

    phase: RunPhase
    session: SessionSpec | None
    every: int


class UseSessions(Message, frozen=True, kw_only=True, tag="use_sessions"):
    """Which session runs what, from the next run on; None: the model's own. Also one that is not there stands for
    the model's own. There is no answer."""

    request_id: int
    model: str
    decode: SessionSpec | None = None
    prefill: SessionSpec | None = None
    trial: TrialRuns | None = None


class CompareSession(Message, frozen=True, kw_only=True, tag="compare_session"):
    """Compute `texts` (token ids) by the session and by the model's own, in pieces and step by step, and compare the
    logits (for an encoder: its vectors). Runs are taken between others. `slot` is free and loses what it held.
    Answered by `Compared`."""

    request_id: int
    model: str
    session: SessionSpec
    slot: int
    texts: list[list[int]]


class Compared(Message, frozen=True, kw_only=True, tag="compared"):
    """Over `positions` rows: whether all were equal to the bit, how far apart they were at most, for how many of them
    the best token is the same, and the least cosine."""

    request_id: int
    positions: int
    equal: bool
    largest_difference: float
    top1_agreement: float
    least_cosine: float


class ProbedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be timed: `rows` sequences of `tokens` new positions each, by `session` (None: the model's own)."""

    session: SessionSpec | None
    rows: int
    tokens: int


class Probe(Message, frozen=True, kw_only=True, tag="probe"):
    """Time the `runs` in turn, `rounds` times, behind `past_tokens` positions in `slot`, while nothing else is open;
    given up at once when something comes. What the slot held is lost. Answered by `Probed`; at once and without
    times when something is open."""

    request_id: int
    model: str
    slot: int
    runs: tuple[ProbedRun, ...]
    rounds: int
    past_tokens: int = 128


class Probed(Message, frozen=True, kw_only=True, tag="probed"):
    """Seconds of each of the runs, in the order asked, of as many rounds as were complete."""

    request_id: int
    seconds: tuple[tuple[float, ...], ...]
    complete: bool


class ProfileOperators(Message, frozen=True, kw_only=True, tag="profile_operators"):
    """Tell how the time of runs is spread over the operators: on twins of the sessions in force, which do `steps`
    decode steps behind `past_tokens` positions in `slot` and a piece of a prompt of `tokens`; an encoder does so many
    texts of one run each. While nothing else is open; given up at once when something comes. What the slot held is
    lost. Answered by `OperatorsProfiled`, or `Failed`."""

    request_id: int
    model: str
    slot: int
    past_tokens: int = 128
    steps: int = 4
    tokens: int = 64


class PhaseProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Profiled runs of `tokens` new positions each, by a session like `session`: what each took, and what of it each
    kind of operator did."""

    phase: ProfilePhase
    session: str = ""
    tokens: int
    run_s: tuple[float, ...]
    operators_s: dict[str, tuple[float, ...]]


class OperatorsProfiled(Message, frozen=True, kw_only=True, tag="operators_profiled"):
    """What was done before something else came; `reason` says so."""

    request_id: int
    phases: tuple[PhaseProfile, ...] = ()
    reason: str = ""
