"""Has the firmware lowered the clocks, now or since the boot, and was it for heat or for the supply?

The kernel's clocks say nothing about it (raspberrypi/firmware#615): only the firmware itself does, on a Raspberry Pi.
"""

from __future__ import annotations

from magnitude.board.snapshot import Firmware, FirmwareFlags, Snapshot
from magnitude.doctor.board_view import look
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

WORDS = {
    "under_voltage": "the supply's voltage is too low",
    "clock_capped": "clocks are capped",
    "throttled": "clocks are throttled",
    "soft_limit": "the soft temperature limit is reached",
}


def check(context: DoctorContext) -> Finding:
    return judge(look(context).snapshot)


def judge(snapshot: Snapshot) -> Finding:
    firmware = snapshot.firmware
    if firmware.now is None:
        if not firmware.hint:
            return Finding(level="ok", title="This board's firmware does not tell of throttling")
        return Finding(level="notice", title="The firmware cannot be asked about throttling", advice=firmware.hint)
    detail = _detail(firmware)
    if firmware.now.under_voltage:
        # The firmware throttles for the voltage as well: those flags are no sign of heat then.
        return Finding(
            level="warning",
            title="The power supply is too weak now",
            detail=detail,
            advice="Use the board's own supply and a short cable, and look at what USB devices draw",
        )
    if firmware.now.throttled or firmware.now.soft_limit or firmware.now.clock_capped:
        return Finding(
            level="warning",
            title="The firmware lowers the clocks for heat now",
            detail=detail,
            advice="Give the board a cooler or moving air; stop other programs",
        )
    before = firmware.since_boot
    if before is not None and any(getattr(before, name) for name in WORDS):
        why = "the power supply was too weak" if before.under_voltage else "the board was too hot"
        return Finding(
            level="notice", title=f"All is well now, but since the boot {why} at least once", detail=detail
        )
    return Finding(level="ok", title="The firmware has not throttled since the boot", detail=detail)


def _detail(firmware: Firmware) -> str:
    lines = [f"now: {_words(firmware.now)}"]
    if firmware.since_boot is not None:
        lines.append(f"since the boot: {_words(firmware.since_boot)}")
    return "\n".join(lines)


def _words(flags: FirmwareFlags | None) -> str:
    return ", ".join(text for name, text in WORDS.items() if getattr(flags, name)) or "nothing"
