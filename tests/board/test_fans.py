from __future__ import annotations

from pathlib import Path

from kernel_trees import write_tree
from magnitude.board.fan import find_fans
from magnitude.board.snapshot import Fan

T, HW = "sys/class/thermal", "sys/class/hwmon"
PWM = {
    f"{T}/cooling_device2/type": "pwm-fan",
    f"{T}/cooling_device2/max_state": 4,
    f"{T}/cooling_device2/cur_state": 3,
}
CPU = {f"{T}/cooling_device0/type": "cpufreq-cpu0", f"{T}/cooling_device0/max_state": 8}
TACHO = {f"{HW}/hwmon3/name": "pwmfan", f"{HW}/hwmon3/fan1_input": 4870}


def test_a_fan_and_the_one_tachometer_are_told_together(tmp_path: Path) -> None:
    found = [reader.read() for reader in find_fans(write_tree(tmp_path, {**PWM, **CPU, **TACHO}))]
    assert found == [Fan(name="pwm-fan", state=3, max_state=4, rpm=4870)]


def test_cooling_by_lower_clocks_is_no_fan(tmp_path: Path) -> None:
    assert find_fans(write_tree(tmp_path, CPU)) == ()


def test_a_tachometer_alone_is_a_fan(tmp_path: Path) -> None:
    found = [reader.read() for reader in find_fans(write_tree(tmp_path, TACHO))]
    assert found == [Fan(name="pwmfan", rpm=4870)]


def test_tachometers_are_not_given_to_the_wrong_fan(tmp_path: Path) -> None:
    second = {f"{HW}/hwmon3/fan2_input": 0}
    found = [reader.read() for reader in find_fans(write_tree(tmp_path, {**PWM, **TACHO, **second}))]
    assert [(fan.name, fan.rpm) for fan in found] == [("pwm-fan", None), ("pwmfan", 4870), ("pwmfan", 0)]
