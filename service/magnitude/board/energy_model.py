"""Energy that a board would take for work, by its profile: for boards that measure none. Pure."""

from __future__ import annotations

from magnitude.board.power_use import LEAKAGE_AT_C, cores_w, leakage_w
from magnitude.board.profile import BoardProfile
from magnitude.board.workload import ModelCost, Phase, Work, cores_used, load_of, placed

# What power is worked out for: 1.5 billion weights in 4 bits. Only how computing and reading weights compare matters,
# and that hardly depends on the model.
_TYPICAL = ModelCost(weight_bytes=1.0e9, macs_per_token=1.5e9)


def phase_w(profile: BoardProfile, phase: Phase, threads: int) -> float:
    """What `phase` on so many threads adds to the idle board, at the highest clocks."""
    used = cores_used(profile, placed(profile, threads), [cluster.opps[-1].khz for cluster in profile.clusters])
    load = load_of(profile, used, Work(phase=phase, threads=threads, model=_TYPICAL))
    return cores_w(profile, used, load) + load.memory_gb_s * profile.memory.watts_per_gb_s


def modelled_j(
    profile: BoardProfile,
    *,
    took_s: float,
    prefill_s: float,
    prefill_threads: int,
    decode_s: float,
    decode_threads: int,
) -> float:
    """Joules of the whole board over `took_s`, of which it read prompts and decoded for so long. Leakage is that of a
    cool chip: it is the same in all that is compared."""
    power = profile.power
    idle_w = power.board_idle_w + power.chip_idle_w + leakage_w(power, LEAKAGE_AT_C)
    return (
        idle_w * took_s
        + phase_w(profile, "prefill", prefill_threads) * prefill_s
        + phase_w(profile, "decode", decode_threads) * decode_s
    )
