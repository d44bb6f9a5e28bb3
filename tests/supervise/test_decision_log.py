from __future__ import annotations

import logging

import pytest

from magnitude.governor.decision import Decision, DecisionCount
from magnitude.supervise.decision_log import SHOWN, DecisionLog

HOT = Decision(source="thermal", kind="state", what="warm to hot", reason="85.0 °C")
TIER = Decision(source="power", kind="tier", what="full to saving", reason="battery at 20 %")


def test_the_newest_decision_is_first_and_says_how_long_ago_it_was() -> None:
    now_s = 10.0
    decisions = DecisionLog(lambda: now_s)
    decisions.add(HOT)
    now_s = 12.5
    decisions.add(TIER)
    assert [(one.what, one.ago_s) for one in decisions.last()] == [("full to saving", 0.0), ("warm to hot", 2.5)]


def test_old_ones_are_forgotten_and_still_counted() -> None:
    decisions = DecisionLog(lambda: 0.0)
    decisions.add(TIER)
    for _ in range(SHOWN):
        decisions.add(HOT)
    assert {one.kind for one in decisions.last()} == {"state"}
    assert decisions.totals() == [
        DecisionCount(source="power", kind="tier", total=1),
        DecisionCount(source="thermal", kind="state", total=SHOWN),
    ]


def test_each_is_a_line_of_the_log_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "magnitude.board"):
        DecisionLog(lambda: 0.0).add(HOT)
    (record,) = caplog.records
    assert record.getMessage() == "thermal: warm to hot"
    assert record.__dict__["fields"]["reason"] == "85.0 °C"


def test_what_happens_between_any_two_requests_is_not_told_to_be_kept() -> None:
    told: list[Decision] = []
    decisions = DecisionLog(lambda: 0.0, told.append)
    decisions.add(HOT, level=logging.DEBUG)
    decisions.add(TIER)
    assert told == [TIER]
