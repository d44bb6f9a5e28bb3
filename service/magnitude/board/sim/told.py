"""What a service on a simulated board says about it."""

from __future__ import annotations

import msgspec


class SimulatedState(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing here is measured. `speed` is how much faster than ours the board's time passes, `chip_w` and `board_w`
    what chip and whole board take, `khz` the clocks that run, by policy; `prefill_share` and `decode_share` the speed
    that these leave, of that at the highest clocks."""

    board: str
    title: str
    ambient_c: float
    speed: float
    passed_s: float
    temp_c: float
    chip_w: float
    board_w: float
    khz: dict[str, int]
    prefill_share: float
    decode_share: float
    folder: str
