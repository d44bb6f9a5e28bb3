"""Whether what was learned still holds, and how much of it may be believed where it does not. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from magnitude.board.cpu import RELEVANT_FEATURES
from magnitude.policy.learned import Binding, Entry, Learned

# One measurement of the present weighs as much, a second one overrules it.
WEAK_WEIGHT = 1.0
HASH_DIGITS = 12  # as many as people need to tell two hashes apart


def holds(binding: Binding, now: Binding) -> bool:
    """Whether figures of `binding` are figures of `now`. The name does not matter: the weights are those of the
    hash, also after their folder was renamed."""
    return not changes(binding, now)


def changes(before: Binding, now: Binding) -> tuple[str, ...]:
    """What differs, for people: "ONNX Runtime 1.32.0 -> 1.33.0"."""
    found = []
    if before.board != now.board:
        found.append(f"board {before.board or 'none'} -> {now.board or 'none'}")
    if before.model_hash != now.model_hash:
        found.append(f"weights {before.model_hash[:HASH_DIGITS]} -> {now.model_hash[:HASH_DIGITS]}")
    if before.ort_version != now.ort_version:
        found.append(f"ONNX Runtime {before.ort_version or 'unknown'} -> {now.ort_version or 'unknown'}")
    if before.kernel_version != now.kernel_version:
        found.append(f"operator library {before.kernel_version or 'none'} -> {now.kernel_version or 'none'}")
    old, present = relevant(before.cpu_features), relevant(now.cpu_features)
    gone, new = sorted(old - present), sorted(present - old)
    if gone or new:
        found.append("CPU features " + " ".join([*(f"-{name}" for name in gone), *(f"+{name}" for name in new)]))
    return tuple(found)


def relevant(cpu_features: Iterable[str]) -> frozenset[str]:
    """Those that change how fast a model runs: a new kernel that names one more flag is no new CPU."""
    return RELEVANT_FEATURES & frozenset(cpu_features)


def gives_prior(binding: Binding, now: Binding) -> bool:
    """Whether what another binding learned says anything of `now`: on the same board with the same features of the
    CPU, of the model of that name. There another runtime or other weights change figures by some per cent, and
    seldom their order; another CPU changes the order too."""
    return (
        binding.board == now.board
        and relevant(binding.cpu_features) == relevant(now.cpu_features)
        and (binding.model_hash == now.model_hash or binding.model == now.model)
    )


def weakened(learned: Learned, now: Binding) -> Learned:
    """`learned` as a hint for `now`: choices and their costs with the weight of one sample. Nothing that was proven
    or refused is taken over: those are of the binding that they were found with."""
    return Learned(
        binding=now, entries=tuple(_weak(entry) for entry in learned.entries), saved_at_s=learned.saved_at_s
    )


def _weak(entry: Entry) -> Entry:
    evidence = tuple(
        msgspec.structs.replace(each, weight=min(each.weight, WEAK_WEIGHT), failed=0.0) for each in entry.evidence
    )
    return msgspec.structs.replace(entry, evidence=evidence)
