"""What the doctor says about the board, by what was seen of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import load_profile
from magnitude.board.sim.board import SimulatedBoard
from magnitude.board.sim.tree import BoardTree
from magnitude.board.snapshot import (
    ClockedDevice,
    ClockPolicy,
    Fan,
    Firmware,
    FirmwareFlags,
    Power,
    Snapshot,
    TempSensor,
)
from magnitude.config import Settings
from magnitude.config.board import BoardSettings
from magnitude.doctor import DoctorContext
from magnitude.doctor.checks import battery, cooling, cpu_clocks, cpu_limits, memory_clock, throttling
from magnitude.doctor.finding import Finding
from magnitude.paths import find_paths


def policy(name: str = "policy0", **fields: object) -> ClockPolicy:
    given: dict[str, object] = {
        "cpus": (0, 1, 2, 3),
        "max_khz": 2400000,
        "cap_khz": 2400000,
        "cur_khz": 1500000,
        "governor": "schedutil",
        **fields,
    }
    return ClockPolicy(name=name, **given)  # type: ignore[arg-type]


def clocks(*policies: ClockPolicy, driver: str = "cpufreq-dt") -> Finding:
    return cpu_clocks.judge(Snapshot(at_s=0, clocks=policies), {policy.name: driver for policy in policies})


@pytest.mark.parametrize("governor", ["schedutil", "ondemand", "performance", "conservative"])
def test_a_governor_that_follows_the_work_is_fine(governor: str) -> None:
    assert clocks(policy(governor=governor)).level == "ok"


@pytest.mark.parametrize("governor", ["powersave", "userspace"])
def test_a_governor_that_stands_still_is_a_warning_with_the_command(governor: str) -> None:
    finding = clocks(policy(), policy("policy4", governor=governor, cpus=(4, 5)))
    assert finding.level == "warning"
    assert "policy4" in finding.title
    assert governor in finding.title
    assert "policy0" not in finding.title
    assert "scaling_governor" in finding.advice


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp"])
def test_powersave_is_fine_where_it_follows_the_work(driver: str) -> None:
    assert clocks(policy(governor="powersave"), driver=driver).level == "ok"


def test_a_limit_below_the_hardwares_is_worth_knowing() -> None:
    finding = clocks(policy(cap_khz=1000000))
    assert finding.level == "notice"
    assert "limit 1000 of 2400 MHz" in finding.detail
    assert "restore-clocks" in finding.advice


def test_clocks_that_are_not_told_are_no_trouble() -> None:
    assert clocks().level == "ok"
    finding = clocks(ClockPolicy(name="policy7"))
    assert finding.level == "ok"
    assert "none online" in finding.detail


@pytest.mark.parametrize(
    ("writable", "opened", "units", "level", "said"),
    [
        (False, {"policy0"}, True, "ok", "by the service"),
        (True, set(), False, "ok", "by this user"),
        (False, set(), True, "warning", "magnitude-permissions.service"),
        (False, set(), False, "warning", "install-units"),
    ],
)
def test_limits_that_cannot_be_written_are_a_warning_with_the_fix(
    writable: bool, opened: set[str], units: bool, level: str, said: str
) -> None:
    snapshot = Snapshot(at_s=0, clocks=(policy(writable=writable),))
    finding = cpu_limits.judge(snapshot, opened, units=units)
    assert finding.level == level
    assert said in f"{finding.title} {finding.advice}"


def test_a_policy_that_is_closed_is_named_alone() -> None:
    snapshot = Snapshot(at_s=0, clocks=(policy("policy0"), policy("policy4")))
    assert "policy0" not in cpu_limits.judge(snapshot, {"policy0"}, units=True).title
    assert cpu_limits.judge(Snapshot(at_s=0), (), units=False).level == "ok"


def flags(**on: bool) -> FirmwareFlags:
    return FirmwareFlags(**on)


def firmware(now: FirmwareFlags | None, before: FirmwareFlags | None = None, hint: str = "") -> Finding:
    return throttling.judge(Snapshot(at_s=0, firmware=Firmware(now=now, since_boot=before, hint=hint)))


@pytest.mark.parametrize(
    ("now", "before", "level", "said"),
    [
        # 0x50005: throttled for its supply, which is no heat.
        (flags(under_voltage=True, throttled=True), flags(under_voltage=True, throttled=True), "warning", "supply"),
        # 0x50000, 0xE0000: history.
        (flags(), flags(under_voltage=True, throttled=True), "notice", "supply was too weak"),
        (flags(), flags(clock_capped=True, throttled=True, soft_limit=True), "notice", "too hot"),
        # 0x80008, 0x0.
        (flags(soft_limit=True), flags(soft_limit=True), "warning", "heat now"),
        (flags(), flags(), "ok", "not throttled"),
    ],
)
def test_throttling_now_and_earlier_heat_and_supply_are_kept_apart(
    now: FirmwareFlags, before: FirmwareFlags, level: str, said: str
) -> None:
    finding = firmware(now, before)
    assert finding.level == level
    assert said in finding.title


def test_firmware_that_cannot_be_asked_is_unknown_with_what_would_help() -> None:
    finding = firmware(None, hint="Add the user to the group video")
    assert (finding.level, finding.advice) == ("notice", "Add the user to the group video")
    assert firmware(None).level == "ok"


def memory(governor: str, threshold: int | None = None) -> Finding:
    dmc = ClockedDevice(name="dmc", kind="memory", governor=governor, cur_khz=528000, max_khz=2112000)
    gpu = ClockedDevice(name="fb000000.gpu", kind="gpu", governor="powersave")
    return memory_clock.judge(Snapshot(at_s=0, devices=(gpu, dmc)), {"dmc": threshold, "fb000000.gpu": 90})


@pytest.mark.parametrize(
    ("governor", "threshold", "level"),
    [
        ("dmc_ondemand", 40, "warning"),
        ("dmc_ondemand", 26, "warning"),
        ("dmc_ondemand", 25, "ok"),
        ("dmc_ondemand", None, "ok"),
        ("performance", 40, "ok"),
        ("powersave", None, "warning"),
    ],
)
def test_a_memory_clock_that_stays_low_is_a_warning(governor: str, threshold: int | None, level: str) -> None:
    finding = memory(governor, threshold)
    assert finding.level == level
    assert ("/sys/class/devfreq/dmc/" in finding.advice) == (level == "warning")


def test_a_board_that_leaves_the_memory_clock_alone_is_fine() -> None:
    assert memory_clock.judge(Snapshot(at_s=0), {}).level == "ok"


@pytest.fixture(scope="module")
def pi5() -> BoardProfile:
    return load_profile("pi5-bare")


CPU = TempSensor(name="cpu-thermal", kind="cpu", temp_c=52.0, age_s=0.1)
FAN = Fan(name="pwm-fan", state=1, max_state=4, rpm=2300)


def heat(profile: BoardProfile, temp_c: float | None, *temps: TempSensor, fans: tuple[Fan, ...] = ()) -> Finding:
    return cooling.judge(Snapshot(at_s=0, hottest_c=temp_c, temps=temps, fans=fans), profile)


def test_a_cool_processor_is_fine_and_what_tells_is_named(pi5: BoardProfile) -> None:
    finding = heat(pi5, 52.0, CPU, fans=(FAN,))
    assert finding.level == "ok"
    assert "52 °C" in finding.title
    assert "cpu-thermal (cpu): 52.0 °C" in finding.detail
    assert "fan pwm-fan: step 1 of 4 2300 rpm" in finding.detail
    assert pi5.title in finding.detail


def test_above_where_the_service_holds_the_board_is_a_warning_and_near_it_worth_knowing(pi5: BoardProfile) -> None:
    assert heat(pi5, pi5.trips.soft_c - cooling.NEAR_C - 0.1).level == "ok"
    assert heat(pi5, pi5.trips.soft_c - cooling.NEAR_C).level == "notice"
    assert heat(pi5, pi5.governor.target_c).level == "notice"
    bare = heat(pi5, pi5.governor.target_c + 0.1)
    assert bare.level == "warning"
    assert "cooler" in bare.advice
    assert "fan" in heat(pi5, pi5.trips.hard_c, fans=(FAN,)).advice


def test_no_temperature_is_a_warning_and_never_cool(pi5: BoardProfile) -> None:
    silent = TempSensor(name="cpu-thermal", kind="cpu", fault="it answers EIO")
    finding = heat(pi5, None, silent)
    assert finding.level == "warning"
    assert "no fan is known" in finding.title
    assert "EIO" in finding.detail
    assert cooling.judge(Snapshot(at_s=0, clocks=(policy(),)), pi5).level == "warning"
    assert "fan" not in heat(pi5, None, fans=(FAN,)).title


def test_a_virtual_machine_that_shows_nothing_is_no_trouble(pi5: BoardProfile) -> None:
    assert heat(pi5, None).level == "notice"


def test_a_sensor_that_cannot_be_trusted_is_named(pi5: BoardProfile) -> None:
    finding = heat(pi5, 52.0, CPU, TempSensor(name="gpu-thermal", kind="gpu", fault="it answers EAGAIN"))
    assert finding.level == "notice"
    assert "gpu-thermal" in finding.title
    assert "EAGAIN" in finding.detail


@pytest.mark.parametrize(
    ("power", "level", "said"),
    [
        (Power(), "ok", "no battery"),
        (Power(on_mains=True), "ok", "no battery"),
        (Power(on_mains=True, battery_percent=80, discharging=False), "ok", "80 %"),
        (Power(on_mains=False, battery_percent=80, discharging=True), "notice", "80 %"),
        (Power(on_mains=False, battery_percent=15, discharging=True), "warning", "low"),
        (Power(on_mains=True, battery_percent=15, discharging=False), "ok", "15 %"),
        (Power(discharging=True), "notice", "unknown charge"),
        (Power(battery_percent=90, discharging=False, battery_temp_c=47), "warning", "47 °C"),
    ],
)
def test_what_feeds_the_board_is_judged(power: Power, level: str, said: str) -> None:
    finding = battery.judge(Snapshot(at_s=0, power=power))
    assert finding.level == level
    assert said in finding.title


@pytest.fixture
def rock5b(tmp_path: Path) -> Iterator[DoctorContext]:
    """A context that looks at a simulated board."""
    profile = load_profile("rock5b")
    tree = BoardTree(tmp_path / "board", profile, SimulatedBoard(profile).snapshot())
    yield DoctorContext(
        settings=Settings(), paths=find_paths({"MAGNITUDE_HOME": str(tmp_path / "home")}), roots=tree.roots
    )
    tree.close()


def test_the_checks_read_a_board_as_its_kernel_shows_it(rock5b: DoctorContext) -> None:
    cpufreq = rock5b.roots.sys / "devices/system/cpu/cpufreq"
    dmc = rock5b.roots.sys / "class/devfreq/dmc"
    assert cpu_clocks.check(rock5b).level == "ok"
    (cpufreq / "policy4/scaling_governor").write_text("userspace\n")
    assert cpu_clocks.check(rock5b).level == "ok"  # one look serves all checks
    rock5b.looked.clear()
    assert "policy4" in cpu_clocks.check(rock5b).title
    (dmc / "upthreshold").write_text("40\n")
    assert memory_clock.check(rock5b).level == "warning"
    (dmc / "upthreshold").write_text("25\n")
    assert memory_clock.check(rock5b).level == "ok"
    cool = cooling.check(rock5b)
    assert cool.level == "ok", cool
    assert "ROCK 5B" in cool.detail
    assert cpu_limits.check(rock5b).title == "CPU clocks can be limited by this user"
    assert battery.check(rock5b).title == "There is no battery"
    assert throttling.check(rock5b).level == "ok"


def test_the_board_that_is_configured_is_the_one_that_is_judged(rock5b: DoctorContext) -> None:
    settings = Settings(board=BoardSettings(profile="pi5-cooler"))
    assert "Raspberry Pi 5" in cooling.check(replace(rock5b, settings=settings)).detail
