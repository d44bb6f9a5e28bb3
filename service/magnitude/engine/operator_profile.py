"""What a profile of ONNX Runtime says: for each run of the graph, how long each kind of operator took.

The file is a list of trace events. Those of a run's nodes (category "Node", microseconds in `dur`, the operator's
kind in `args.op_name`) come before the event "model_run" of the run itself.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from magnitude.engine.probing import TimedRun
from magnitude.engine.session_messages import ProfilePhase
from magnitude.errors import EngineError


class ProfiledRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `run_s`, and what its operators took together, by kind."""

    run_s: float
    operators_s: dict[str, float]


class PhaseRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one phase: one that warms up, and `counted` more."""

    phase: ProfilePhase
    tokens: int
    run: TimedRun
    counted: int


class _Arguments(msgspec.Struct, frozen=True):
    op_name: str = ""


class _Event(msgspec.Struct, frozen=True):
    cat: str = ""
    name: str = ""
    dur: float = 0.0
    args: _Arguments = _Arguments()


_EVENTS = msgspec.json.Decoder(list[_Event])


def read_profile(data: bytes) -> list[ProfiledRun]:
    """The runs in their order. Raises `EngineError` for anything but a profile."""
    try:
        events = _EVENTS.decode(data)
    except msgspec.DecodeError as error:
        raise EngineError(
            f"the profile of the operators cannot be read: {error}",
            code="profile_unreadable",
            hint="Is there room in the service's run folder?",
        ) from error
    runs: list[ProfiledRun] = []
    operators_us: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.cat == "Node" and event.args.op_name:
            operators_us[event.args.op_name] += event.dur
        elif event.cat == "Session" and event.name == "model_run":
            operators_s = {kind: us / 1e6 for kind, us in sorted(operators_us.items())}
            runs.append(ProfiledRun(run_s=event.dur / 1e6, operators_s=operators_s))
            operators_us.clear()
    return runs
