"""What feeds the board?"""

from __future__ import annotations

from magnitude.board.snapshot import Power, Snapshot
from magnitude.doctor.board_view import look
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding
from magnitude.governor.power import PowerRules

RULES = PowerRules()
# Makers of lithium cells allow charging up to 45 °C (JEITA's guideline of 2007 for safe charging).
HOT_C = 45.0


def check(context: DoctorContext) -> Finding:
    return judge(look(context).snapshot)


def judge(snapshot: Snapshot) -> Finding:
    power = snapshot.power
    detail = _detail(power)
    if power.battery_percent is None and power.discharging is None:
        return Finding(level="ok", title="There is no battery", detail=detail)
    percent = power.battery_percent
    charge = "an unknown charge" if percent is None else f"{percent:.0f} %"
    if power.battery_temp_c is not None and power.battery_temp_c >= HOT_C:
        return Finding(
            level="warning",
            title=f"The battery is at {power.battery_temp_c:.0f} °C",
            detail=detail,
            advice="Do not charge it until it has cooled; give it distance from the processor",
        )
    if power.discharging and percent is not None and percent <= RULES.battery_least_percent:
        return Finding(
            level="warning",
            title=f"The board runs on its battery, which is low: {charge}",
            detail=detail,
            advice="Connect the supply; until then the service does as little as it can",
        )
    if power.discharging:
        return Finding(
            level="notice",
            title=f"The board runs on its battery: {charge}",
            detail=f"{detail}; the service saves from {RULES.battery_saving_percent:.0f} % on",
        )
    return Finding(level="ok", title=f"The board runs on its supply, the battery is at {charge}", detail=detail)


def _detail(power: Power) -> str:
    supply = {None: "not told", True: "connected", False: "not connected"}[power.on_mains]
    return f"supply: {supply}"
