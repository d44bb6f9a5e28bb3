"""A further session is made only where models, sessions and the board leave room for it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.governor.memory_ladder import STEPS
from magnitude.schedule.session_budget import SessionBudget

BUDGET = SessionBudget(
    room_bytes=500_000_000,
    step="normal",
    account_bytes=1_000_000_000,
    models_bytes=600_000_000,
    sessions_bytes=100_000_000,
    limit_bytes=300_000_000,
)


def test_what_fits_is_not_refused() -> None:
    assert BUDGET.refusal(125_000_000) == ""


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"step": "trim"}, "short"),
        ({"limit_bytes": 200_000_000}, "policy.session_memory_bytes"),
        ({"models_bytes": 800_000_000}, "models and sessions"),
        ({"room_bytes": 150_000_000}, "to be made"),
    ],
)
def test_each_bound_refuses_by_itself_and_says_which(change: dict[str, object], word: str) -> None:
    assert word in msgspec.structs.replace(BUDGET, **change).refusal(125_000_000)


def test_a_limit_of_nothing_allows_no_further_session() -> None:
    assert msgspec.structs.replace(BUDGET, limit_bytes=0, sessions_bytes=0).refusal(1)


def test_unknown_room_is_judged_by_the_account_alone() -> None:
    assert msgspec.structs.replace(BUDGET, room_bytes=None).refusal(125_000_000) == ""


@given(needed=st.integers(0, 10**9), step=st.sampled_from(STEPS), room=st.integers(0, 10**9))
def test_what_is_allowed_keeps_the_account_and_leaves_room(needed: int, step: str, room: int) -> None:
    budget = msgspec.structs.replace(BUDGET, step=step, room_bytes=room)
    if not budget.refusal(needed):
        assert step == "normal"
        assert needed <= room
        assert budget.models_bytes + budget.sessions_bytes + needed <= budget.account_bytes
        assert budget.sessions_bytes + needed <= (budget.limit_bytes or 0)
