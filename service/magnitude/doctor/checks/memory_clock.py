"""Does the memory's clock follow the work?

Decoding reads all weights for each token, so it is as fast as the memory. Vendor kernels for Rockchip change the
memory's clock by load (devfreq `dmc`, governor `dmc_ondemand`), and raise it above a load of 40 % only, which
inference seldom shows. Published for an RK3588 (geerlingguy/sbc-reviews#2): at 25 the full speed is back, while an
idle board still takes 600 mW less than with the governor `performance`. Not lower: at or below `downdifferential`,
which is 20, the rule for lowering the clock again no longer works (ThomasKaiser/Knowledge#7).
"""

from __future__ import annotations

from collections.abc import Mapping

from magnitude.board.roots import read_int
from magnitude.board.snapshot import ClockedDevice, Snapshot
from magnitude.doctor.board_view import look
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

GOOD_THRESHOLD_PERCENT = 25
FOLDER = "/sys/class/devfreq"


def check(context: DoctorContext) -> Finding:
    snapshot = look(context).snapshot
    devfreq = context.roots.sys / "class/devfreq"
    thresholds = {device.name: read_int(devfreq / device.name / "upthreshold") for device in snapshot.devices}
    return judge(snapshot, thresholds)


def judge(snapshot: Snapshot, up_thresholds: Mapping[str, int | None]) -> Finding:
    """`up_thresholds`: the load in percent from which on a device's clock is raised, where it is told."""
    memories = [device for device in snapshot.devices if device.kind == "memory"]
    if not memories:
        return Finding(level="ok", title="The memory's clock is not the kernel's to change")
    detail = "\n".join(_line(device, up_thresholds.get(device.name)) for device in memories)
    for device in memories:
        if device.governor == "powersave":
            return Finding(
                level="warning",
                title=f"The memory ({device.name}) is always at its lowest clock (governor powersave)",
                detail=detail,
                advice=f"echo performance | sudo tee {FOLDER}/{device.name}/governor",
            )
        threshold = up_thresholds.get(device.name)
        if "ondemand" in device.governor and threshold is not None and threshold > GOOD_THRESHOLD_PERCENT:
            return Finding(
                level="warning",
                title=f"The memory's clock ({device.name}) rises from a load of {threshold} % on only: "
                "inference seldom shows as much, and runs at a low memory clock",
                detail=f"{detail}\nAt {GOOD_THRESHOLD_PERCENT} others have measured the full speed again on an "
                "RK3588, with 600 mW less when idle than with the governor performance.",
                advice=f"echo {GOOD_THRESHOLD_PERCENT} | sudo tee {FOLDER}/{device.name}/upthreshold (at each boot)",
            )
    return Finding(level="ok", title="The memory's clock follows the work", detail=detail)


def _line(device: ClockedDevice, threshold: int | None) -> str:
    mhz = ["?" if khz is None else f"{khz / 1000:.0f}" for khz in (device.cur_khz, device.min_khz, device.max_khz)]
    from_load = "" if threshold is None else f", raised from a load of {threshold} % on"
    return f"{device.name}: governor {device.governor or 'unknown'}, {mhz[0]} of {mhz[1]} to {mhz[2]} MHz{from_load}"
