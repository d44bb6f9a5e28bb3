"""When a switch between models counts as slow, or as not measured."""

import msgspec

from bench.spread import Spread
from bench.switch import GOAL_S, SwitchResult

QUICK = Spread(median=0.01, low=0.005, high=0.2)
RESULT = SwitchResult(
    rounds=3,
    same_before_prefill_s=QUICK,
    warm_before_prefill_s=QUICK,
    same_ttft_s=QUICK,
    warm_ttft_s=QUICK,
    ttft_difference_s=QUICK,
    cold_before_prefill_s=Spread(median=2.0, low=1.0, high=3.0),
    cold_ttft_s=Spread(median=2.0, low=1.0, high=3.0),
    no_cold="",
)


def test_one_slow_switch_is_none_and_a_slow_median_is_one() -> None:
    assert RESULT.missed == []
    slow = Spread(median=GOAL_S * 1.5, low=0.01, high=0.2)
    assert msgspec.structs.replace(RESULT, warm_before_prefill_s=slow).missed == [
        "switch to a loaded model: 75 ms, goal 50"
    ]


def test_loading_that_could_not_be_measured_is_told() -> None:
    missing = msgspec.structs.replace(RESULT, cold_before_prefill_s=None, cold_ttft_s=None, no_cold="answers 404")
    assert missing.missed == ["loading was not measured: answers 404"]
