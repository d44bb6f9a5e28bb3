"""What the configuration says becomes the bounds of the strategy loops."""

from __future__ import annotations

import msgspec
import pytest

from magnitude.board.profiles import load_profile
from magnitude.config import EngineSettings, Settings
from magnitude.config.field_test import FieldTestSettings
from magnitude.config.policy import PolicySettings
from magnitude.policy.rules import Rules
from magnitude.schedule.strategy_setup import board_name_of, field_test_of, rules_of


def test_the_shipped_configuration_gives_the_shipped_rules() -> None:
    assert rules_of(Settings(), "rock5b") == Rules()


def test_what_is_configured_is_what_bounds_the_loop() -> None:
    policy = PolicySettings(
        explore="idle",
        prefer="speed",
        least_gain=0.1,
        dwell_s=7.0,
        half_life_s=70.0,
        loss_budget=0.02,
        bandwidth_threshold=0.5,
        latency_limit_ms=1500.0,
    )
    settings = Settings(policy=policy, engine=EngineSettings(self_optimize=False, optimization_window=100))
    rules = rules_of(settings, "rock5b")
    assert (rules.on, rules.window) == (False, 100)
    assert rules.latency_limit_s == 1.5
    same = ("explore", "prefer", "least_gain", "dwell_s", "half_life_s", "loss_budget", "bandwidth_threshold")
    assert [getattr(rules, name) for name in same] == [getattr(policy, name) for name in same]


@pytest.mark.parametrize("board", ["generic-x86", "generic-arm", "pi5-bare", "pi5-cooler", "rock5b"])
def test_the_cold_start_is_half_a_minute_to_two_by_the_board_unless_it_is_configured(board: str) -> None:
    assert 30 <= rules_of(Settings(), board).cold_start_s <= 120
    given = msgspec.structs.replace(Settings(), policy=PolicySettings(cold_start_s=5.0))
    assert rules_of(given, board).cold_start_s == 5.0


def test_figures_of_a_simulated_board_are_bound_to_it_alone() -> None:
    profile = load_profile("rock5b")
    assert board_name_of(profile, simulated=False) == "rock5b"
    assert board_name_of(profile, simulated=True) != "rock5b"


def test_without_a_test_no_device_takes_part() -> None:
    assert field_test_of(Settings()).arm == ""
    assert field_test_of(Settings(policy=PolicySettings(field_test=FieldTestSettings(name="autumn")))).share == 0.5
    everybody = PolicySettings(field_test=FieldTestSettings(name="autumn", share=1.0))
    part = field_test_of(Settings(policy=everybody))
    assert (part.arm == "on") != bool(part.reason)
