"""How warm is the processor, what tells, and what cools it?"""

from __future__ import annotations

from magnitude.board.profile import BoardProfile
from magnitude.board.snapshot import Fan, Snapshot, TempSensor
from magnitude.doctor.board_view import look
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

# A board this close to where clocks are lowered gets there with its first answers: three or four runs took a
# Raspberry Pi 5 from 50 to 58 °C (ggml-org/llama.cpp#26484).
NEAR_C = 10.0


def check(context: DoctorContext) -> Finding:
    view = look(context)
    return judge(view.snapshot, view.profile)


def judge(snapshot: Snapshot, profile: BoardProfile) -> Finding:
    lines = [f"taken for: {profile.title}; clocks are lowered from {profile.trips.soft_c:.0f} °C on"]
    lines += [_sensor(sensor) for sensor in snapshot.temps] or ["no sensor"]
    lines += [_fan(fan) for fan in snapshot.fans] or ["no fan that the kernel knows of"]
    detail = "\n".join(lines)
    temp_c = snapshot.hottest_c
    if temp_c is None and not (snapshot.temps or snapshot.clocks or snapshot.fans):
        return Finding(
            level="notice",
            title="Neither sensors nor clocks are shown here: heat is not ours to see",
            detail="Usual in virtual machines",
        )
    if temp_c is None:
        unguarded = "" if snapshot.fans else ", and no fan is known"
        return Finding(
            level="warning",
            title=f"No sensor at the processor answers{unguarded}",
            detail=f"{detail}\nThe service works with lower clocks or pauses then: what is not known is not cool.",
            advice="Look at /sys/class/thermal and at the kernel's log for a driver that is missing",
        )
    if temp_c > profile.governor.target_c or temp_c >= profile.trips.soft_c - NEAR_C:
        # Up to its target the service itself goes while it works.
        above = temp_c > profile.governor.target_c
        return Finding(
            level="warning" if above else "notice",
            title=f"The processor is at {temp_c:.0f} °C, near {profile.trips.soft_c:.0f} °C where it gets slower",
            detail=detail if above else f"{detail}\nWhile the service works that is where it holds the board.",
            advice="Look at the fan and at what else runs"
            if snapshot.fans
            else "Give the board a cooler or moving air; look at what else runs",
        )
    silent = [sensor.name for sensor in snapshot.temps if sensor.fault]
    if silent:
        return Finding(
            level="notice",
            title=f"The processor is at {temp_c:.0f} °C; {', '.join(silent)} cannot be trusted",
            detail=detail,
        )
    return Finding(level="ok", title=f"The processor is at {temp_c:.0f} °C", detail=detail)


def _sensor(sensor: TempSensor) -> str:
    said = "unknown" if sensor.temp_c is None else f"{sensor.temp_c:.1f} °C"
    return f"{sensor.name} ({sensor.kind}): {said}{f', {sensor.fault}' if sensor.fault else ''}"


def _fan(fan: Fan) -> str:
    state = "" if fan.state is None else f" step {fan.state} of {fan.max_state if fan.max_state is not None else '?'}"
    return f"fan {fan.name}:{state}{f' {fan.rpm} rpm' if fan.rpm is not None else ''}".rstrip(":")
