"""When the engine counts as not following the simulated clock."""

import msgspec

from bench.live_board import RATIO_TOLERANCE, SHARE_TOLERANCE, ClockResult
from bench.spread import Spread


def spread(median: float) -> Spread:
    return Spread(median=median, low=0.01, high=2.0)


RESULT = ClockResult(
    khz=1_200_000,
    predicted_prefill=0.5,
    predicted_decode=0.9,
    prefill=spread(0.5),
    decode=spread(0.9),
    held_prefill=spread(0.5),
    held_decode=spread(0.9),
    full_prefill_tokens_s=spread(200.0),
    full_decode_tokens_s=spread(50.0),
)


def test_one_odd_round_is_no_miss_and_an_odd_median_is_one() -> None:
    assert RESULT.missed == []
    slow = spread(0.5 * (1 - 1.2 * RATIO_TOLERANCE))
    assert msgspec.structs.replace(RESULT, prefill=slow).missed == [
        "prefill at 1200 MHz, as a client sees it: 0.29 of full speed, predicted 0.50"
    ]


def test_what_the_engine_says_itself_is_judged_more_strictly() -> None:
    near = spread(0.9 * (1 - 1.2 * SHARE_TOLERANCE))
    assert msgspec.structs.replace(RESULT, decode=near).missed == []
    assert "as the engine sees it" in msgspec.structs.replace(RESULT, held_decode=near).missed[0]


def test_an_engine_that_ignores_the_clock_is_told() -> None:
    assert "decode" in msgspec.structs.replace(RESULT, predicted_decode=0.5).missed[0]
