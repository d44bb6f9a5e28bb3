"""A board without a battery for its clock boots in 1970, and learns the time while it serves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from guest import Guest
from guest_session import CLIENT, Answer

pytestmark = pytest.mark.system

YEAR_S = 365.25 * 86400
# Some seconds in the guest: long enough for two jumps in the middle.
TOKENS = 500


def figures(value: Any) -> list[float]:
    """All numbers in a reply."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in figures(item)]
    if isinstance(value, list):
        return [number for item in value for number in figures(item)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_a_clock_that_is_set_in_the_middle_of_an_answer_ends_nothing(serving: Guest) -> None:
    assert serving.check("date +%Y").strip() == "1970"
    undisturbed = Answer(serving, TOKENS).whole()
    who = serving.check("systemctl show --property=MainPID,NRestarts magnitude")
    engine = json.loads(serving.check(f"{CLIENT} get /readyz"))["engine_restarts"]

    disturbed = Answer(serving, TOKENS)
    serving.set_clock(55 * YEAR_S)
    serving.set_clock(55 * YEAR_S - 7200)
    seen = disturbed.whole()
    assert (seen["error"], seen["finish"]) == (None, "length")
    assert seen["text"] == undisturbed["text"]

    assert serving.check("systemctl show --property=MainPID,NRestarts magnitude") == who
    health = json.loads(serving.check(f"{CLIENT} get /readyz"))
    assert health["ready"]
    assert health["engine_restarts"] == engine
    state = json.loads(serving.check(f"{CLIENT} get /v1/magnitude/state"))
    assert min(figures(state)) >= 0
    # Nothing lasted for years: every age and rate is below a day's worth of milliseconds.
    assert max(figures({name: state[name] for name in ("figures", "runs")})) < 86400_000
    assert state["health"]["uptime_s"] < 86400
