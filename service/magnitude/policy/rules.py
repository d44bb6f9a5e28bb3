"""What bounds the strategy loop, and what it must know of the model that it runs."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.models.description import Kind, KvType

Explore = Literal["off", "idle", "load"]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How carefully the loop goes about. The defaults are those of the configuration, with their reasons there.

    `window` samples of both sides are compared before a switch. For `cold_start_s` after the first engine came up
    nothing is tried. A part keeps what it has for `dwell_s` at least, and twice as long each time it returns to
    something that it had left. A challenger must save `least_gain` of the time. Figures lose half of their weight
    within `half_life_s`. Under load one of `trial_every` runs is a trial's, and trials may cost `loss_budget` of the
    time that the engine computes. Of further sessions there are `most_sessions` at once: one for answers, one for
    prompts, and what is compared with them. Where the 95th percentile of tasks' times passes `latency_limit_s`, other
    weights take their place.
    """

    on: bool = True
    window: int = 50
    cold_start_s: float = 60.0
    dwell_s: float = 60.0
    least_gain: float = 0.03
    half_life_s: float = 1800.0
    explore: Explore = "load"
    trial_every: int = 8
    loss_budget: float = 0.01
    bandwidth_threshold: float = 0.7
    most_sessions: int = 3
    latency_limit_s: float | None = None
    prefer: Literal["quality", "speed"] = "quality"


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model as it was loaded. `own` is its own session; `graphs` are further graphs of its (fusion plans),
    `variants` names of other weights for it, the smallest first."""

    name: str
    kind: Kind
    own: SessionSpec
    graphs: tuple[str, ...] = ()
    chunk: int = 128
    max_batch: int = 1
    max_draft: int = 0
    kv_type: KvType | None = None
    kv_budget_bytes: int = 0
    variants: tuple[str, ...] = ()
    weight_bytes: int = 0
