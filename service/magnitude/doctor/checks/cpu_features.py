"""What can the CPU's cores compute, and what does a missing instruction cost?"""

from __future__ import annotations

from magnitude.board import cpu_features
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

_ARM = ("aarch64", "arm64")


def check(context: DoctorContext) -> Finding:
    have = set(cpu_features(context.roots))
    if not have:
        return Finding(
            level="notice",
            title="The CPU's features are unknown",
            detail=f"{context.roots.proc / 'cpuinfo'} names none that matter here",
        )
    known = f"{context.machine}: {' '.join(sorted(have))}"
    if context.machine in _ARM:
        return _arm(have, known)
    return _x86(have, known)


def _arm(have: set[str], known: str) -> Finding:
    if "asimddp" not in have:
        # Cortex-A53, A57, A72 (Raspberry Pi 3 and 4): 8-bit products are made of widening multiplies.
        return Finding(
            level="warning",
            title="The CPU has no dot-product instruction (asimddp)",
            detail=f"{known}\n4-bit and 8-bit models are far slower than on a Cortex-A55, A76 or newer.",
            advice="Use a small model and short prompts, or a board with dot product (Raspberry Pi 5, RK3588)",
        )
    missing = []
    if "i8mm" not in have:
        missing.append("no i8mm, which does twice the 8-bit products of the dot product: prefill cannot profit")
    if "fphp" not in have or "asimdhp" not in have:
        missing.append("no FP16 arithmetic: half-precision work is converted to float first")
    return Finding(level="ok", title="The CPU has the dot product", detail="\n".join((known, *missing)))


def _x86(have: set[str], known: str) -> Finding:
    if "avx2" not in have:
        return Finding(
            level="warning",
            title="The CPU has no AVX2",
            detail=f"{known}\nONNX Runtime then falls back to SSE kernels, several times slower.",
            advice="Use it for trying out only",
        )
    if not have & {"avx_vnni", "avx512_vnni"}:
        return Finding(
            level="notice",
            title="The CPU has AVX2 but no VNNI",
            detail=f"{known}\nQuantised models run slower (8-bit products take three instructions in place of one), "
            "and such products can saturate, which changes results slightly.",
        )
    return Finding(level="ok", title="The CPU has VNNI", detail=known)
