"""Every effect of the thermal governor can be told in words."""

from __future__ import annotations

import pytest

from magnitude.governor.heat_decision import decision_of
from magnitude.governor.thermal_terms import (
    Announce,
    Effect,
    PreferSmaller,
    SetCaps,
    SetConcurrency,
    SetDuty,
    SetThreads,
)


@pytest.mark.parametrize(
    ("effect", "kind", "what"),
    [
        (SetDuty(0.6, "hot"), "duty", "computes 60% of the time"),
        (SetThreads(4, None, "hot"), "threads", "wishes for 4 threads for prompts, as planned for answers"),
        (SetConcurrency(1, "hot"), "concurrency", "generations at once: 1"),
        (SetConcurrency(None, "hot"), "concurrency", "generations at once: as planned"),
        (Announce("hot", "warm", "hot"), "state", "warm to hot"),
        (PreferSmaller(True, "hot"), "smaller", "wishes for a smaller variant"),
        (PreferSmaller(False, "hot"), "smaller", "needs no smaller variant any more"),
    ],
)
def test_an_effect_is_told_as_a_decision_with_its_reason(effect: Effect, kind: str, what: str) -> None:
    decision = decision_of(effect)
    assert (decision.source, decision.kind, decision.what, decision.reason) == ("thermal", kind, what, "hot")


def test_limits_are_told_by_policy() -> None:
    assert "policy0" in decision_of(SetCaps({"policy0": 1_000_000}, "hot")).what
