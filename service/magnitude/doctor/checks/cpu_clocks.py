"""Do the CPUs' clocks follow the work, and does anything hold them down?

A governor that stands still costs more than any tuning brings: on an RK3588 the governor alone made 12 or 21 tokens/s
of the same model (airockchip/rknn-llm#29). On a Raspberry Pi 5 the `userspace` governor once let the firmware's own
throttling raise a hot chip's clock (raspberrypi/rpi-eeprom#518).
"""

from __future__ import annotations

from collections.abc import Mapping

from magnitude.board.roots import read_text
from magnitude.board.snapshot import ClockPolicy, Snapshot
from magnitude.doctor.board_view import look
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

# With these drivers `powersave` is what follows the work (the kernel's admin-guide/pm, intel_pstate and amd-pstate).
DRIVERS_THAT_FOLLOW = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})
SET_GOVERNOR = "echo schedutil | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"


def check(context: DoctorContext) -> Finding:
    snapshot = look(context).snapshot
    cpufreq = context.roots.sys / "devices/system/cpu/cpufreq"
    drivers = {policy.name: read_text(cpufreq / policy.name / "scaling_driver") or "" for policy in snapshot.clocks}
    return judge(snapshot, drivers)


def judge(snapshot: Snapshot, drivers: Mapping[str, str]) -> Finding:
    """`drivers`: the frequency driver of each policy."""
    if not snapshot.clocks:
        return Finding(
            level="ok",
            title="The kernel sets no CPU clocks here",
            detail="There is no cpufreq: usual in virtual machines. Heat can only be met by pauses.",
        )
    detail = "\n".join(_line(policy) for policy in snapshot.clocks)
    still = [
        policy
        for policy in snapshot.clocks
        if policy.governor == "powersave" and drivers.get(policy.name) not in DRIVERS_THAT_FOLLOW
    ]
    if still:
        return Finding(
            level="warning",
            title=f"{_names(still)} always at the lowest clock (governor powersave)",
            detail=detail,
            advice=f"Let clocks follow the work: {SET_GOVERNOR}",
        )
    fixed = [policy for policy in snapshot.clocks if policy.governor == "userspace"]
    if fixed:
        return Finding(
            level="warning",
            title=f"{_names(fixed)} at a clock that somebody fixed (governor userspace)",
            detail=f"{detail}\nOn a Raspberry Pi 5 the firmware has been seen to raise such a clock on a hot chip.",
            advice=f"Let clocks follow the work, and limit them from above: {SET_GOVERNOR}",
        )
    held = [policy for policy in snapshot.clocks if _held(policy)]
    if held:
        return Finding(
            level="notice",
            title=f"{_names(held)} limited below what the hardware can",
            detail=f"{detail}\nThe service does so against heat, and so does the kernel.",
            advice="When the service is stopped and the board is cool: `magnitude restore-clocks`",
        )
    return Finding(level="ok", title="CPU clocks follow the work", detail=detail)


def _held(policy: ClockPolicy) -> bool:
    return policy.cap_khz is not None and policy.max_khz is not None and policy.cap_khz < policy.max_khz


def _names(policies: list[ClockPolicy]) -> str:
    return f"{', '.join(policy.name for policy in policies)} {'is' if len(policies) == 1 else 'are'}"


def _line(policy: ClockPolicy) -> str:
    cpus = ",".join(map(str, policy.cpus)) or "none online"
    clocks = f"{_mhz(policy.cur_khz)}, limit {_mhz(policy.cap_khz)} of {_mhz(policy.max_khz)} MHz"
    return f"{policy.name} (CPUs {cpus}): governor {policy.governor or 'unknown'}, {clocks}"


def _mhz(khz: int | None) -> str:
    return "?" if khz is None else f"{khz / 1000:.0f}"
