"""What running a language model costs a board: time by phase, and how hard its cores and its memory work.

Prefill computes: the cores share each product evenly, so the slowest sets the pace, and time goes with 1 / clock.
Decode reads all weights for each step: memory sets the pace, by the number of threads, as long as the cores' clocks
let them ask for that much."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import msgspec

from magnitude.board.profile import BoardProfile, ClusterProfile

Phase = Literal["idle", "prefill", "decode", "mixed"]

# assumed: how sharply reading turns from what the cores can ask for to what memory can give. A corner (infinity)
# would make lower clocks free down to an exact point, which no board is like; with 4 the last fifth of the clock
# before that point costs 7 % of speed.
KNEE = 4.0


class ModelCost(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one token of a model costs. `weight_bytes` are read for each decode step, however many sequences share it;
    `macs_per_token` is multiply-accumulates; `past_tokens` is how long each sequence is, at `kv_bytes_per_token`."""

    weight_bytes: float
    macs_per_token: float
    kv_bytes_per_token: float = 0.0
    past_tokens: int = 0


class Pool(msgspec.Struct, frozen=True, gc=False):
    """Threads of one session, and the CPUs that they may run on (empty: all). They take the fastest of these first;
    threads beyond their number share them, and count for nothing."""

    threads: int
    cpus: tuple[int, ...] = ()


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What runs for a while. `rows` sequences decode together, on `threads` cores of `cpus` (empty: of all), the
    fastest first; `duty` is the share of the time in which anything runs (pauses between steps are short against a
    second). Mixed: after each decode step `piece_tokens` of a prompt are read in; where decode steps have a pool of
    their own, it is `answers`. `model` may be missing only when idle."""

    phase: Phase
    threads: int
    cpus: tuple[int, ...] = ()
    answers: Pool | None = None
    rows: int = 1
    duty: float = 1.0
    model: ModelCost | None = None
    piece_tokens: int = 32


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What came of it: tokens of prompts and of answers (all rows together), the energy of the whole board and of the
    chip alone, the time between two tokens of one answer (None: nothing was decoded), and the highest temperature."""

    prefill_tokens: float
    decode_tokens: float
    energy_j: float
    chip_energy_j: float
    inter_token_s: float | None = None
    peak_c: float = 0.0


class Rates(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens a second while only that is done, all rows together."""

    prefill_tokens_s: float
    decode_tokens_s: float


class CoreUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`cores` of a cluster take part, at `ghz`."""

    cluster: ClusterProfile
    cores: int
    ghz: float


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Work at given clocks: tokens a second, the share of computing in the cores' time (the rest they wait for
    memory), and what memory delivers."""

    prefill_tokens_s: float
    decode_tokens_s: float
    inter_token_s: float | None
    computing_share: float
    memory_gb_s: float


IDLE = Load(prefill_tokens_s=0.0, decode_tokens_s=0.0, inter_token_s=None, computing_share=0.0, memory_gb_s=0.0)


def placed(profile: BoardProfile, threads: int, cpus: tuple[int, ...] = ()) -> tuple[int, ...]:
    """How many cores of each cluster `threads` threads take that may run on `cpus` (empty: on all): the fastest
    clusters are filled first."""
    order = sorted(range(len(profile.clusters)), key=lambda index: -profile.clusters[index].capacity)
    cores = [0] * len(profile.clusters)
    left = max(1, threads)
    for index in order:
        allowed = sum(not cpus or cpu in cpus for cpu in profile.clusters[index].cpus)
        cores[index] = min(left, allowed)
        left -= cores[index]
    return tuple(cores)


def cores_used(profile: BoardProfile, cores: Sequence[int], khz: Sequence[float]) -> tuple[CoreUse, ...]:
    """So many cores of each cluster, at its clock; clusters without any are left out."""
    return tuple(
        CoreUse(cluster=cluster, cores=count, ghz=clock / 1e6)
        for cluster, count, clock in zip(profile.clusters, cores, khz, strict=True)
        if count
    )


def load_of(profile: BoardProfile, used: Sequence[CoreUse], work: Work) -> Load:
    """What `work` comes to on those cores, at full duty."""
    model = work.model
    if work.phase == "idle" or model is None or not used:
        return IDLE
    token_s = model.macs_per_token / _macs_per_s(used)
    if work.phase == "prefill":
        return Load(
            prefill_tokens_s=1.0 / token_s,
            decode_tokens_s=0.0,
            inter_token_s=None,
            computing_share=1.0,
            memory_gb_s=0.0,
        )
    rows = max(1, work.rows)
    step_bytes = model.weight_bytes + rows * model.kv_bytes_per_token * model.past_tokens
    reading_s = step_bytes / (1e9 * profile.memory.weights_share * read_gb_s(profile, used))
    computing_s = rows * token_s
    hidden = min(use.cluster.hidden_compute for use in used)
    step_s = max(reading_s, hidden * computing_s) + (1.0 - hidden) * computing_s
    piece_s = work.piece_tokens * token_s if work.phase == "mixed" else 0.0
    cycle_s = step_s + piece_s
    return Load(
        prefill_tokens_s=work.piece_tokens / cycle_s if work.phase == "mixed" else 0.0,
        decode_tokens_s=rows / cycle_s,
        inter_token_s=cycle_s,
        computing_share=(min(computing_s, step_s) + piece_s) / cycle_s,
        memory_gb_s=step_bytes / cycle_s / 1e9,
    )


def in_turn(answers: Load, prompts: Load, work: Work) -> Load:
    """The mixed phase where decode steps and pieces of prompts run on different cores, each as it does alone."""
    step_s = answers.inter_token_s or 0.0
    cycle_s = step_s + work.piece_tokens / prompts.prefill_tokens_s
    step_share = step_s / cycle_s
    return Load(
        prefill_tokens_s=work.piece_tokens / cycle_s,
        decode_tokens_s=answers.decode_tokens_s * step_share,
        inter_token_s=cycle_s,
        computing_share=answers.computing_share * step_share + prompts.computing_share * (1.0 - step_share),
        memory_gb_s=answers.memory_gb_s * step_share,
    )


def read_gb_s(profile: BoardProfile, used: Sequence[CoreUse]) -> float:
    """GB/s that those cores read together. Cores read equal parts, so all wait for the one that asks least."""
    threads = sum(use.cores for use in used)
    fastest = max(profile.clusters, key=lambda cluster: cluster.capacity)
    table = _table(profile.memory.read_gb_s, threads)
    asked = threads * min(use.cluster.bytes_per_cycle * use.ghz for use in used)
    most = threads * fastest.bytes_per_cycle * fastest.opps[-1].khz / 1e6
    # The table holds at the highest clock, where cores already may not ask for all of it.
    return table * _knee(asked / table) / _knee(most / table)


def _macs_per_s(used: Sequence[CoreUse]) -> float:
    return sum(use.cores for use in used) * min(use.cluster.macs_per_cycle * use.ghz for use in used) * 1e9


def _knee(ratio: float) -> float:
    """Nearly `ratio` far below 1, nearly 1 far above: the smooth minimum of both."""
    return float((1.0 + ratio**-KNEE) ** (-1.0 / KNEE))


def _table(figures: dict[int, float], threads: int) -> float:
    """The figure for so many threads: straight lines between those known, their ends beyond."""
    known = sorted(figures)
    if threads <= known[0]:
        return figures[known[0]]
    for low, high in itertools.pairwise(known):
        if threads <= high:
            return figures[low] + (figures[high] - figures[low]) * (threads - low) / (high - low)
    return figures[known[-1]]
