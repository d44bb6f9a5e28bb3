"""Board profiles: those that come with the service, those of one's own, and which one is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.board.profiles import FOLDER, find_profile, load_profile, policy_name, profile_names
from magnitude.board.roots import HostRoots
from magnitude.errors import ConfigError


def board_tree(root: Path, *names: str) -> HostRoots:
    roots = HostRoots.under(root)
    (roots.proc / "device-tree").mkdir(parents=True)
    (roots.proc / "device-tree" / "compatible").write_bytes(b"".join(name.encode() + b"\0" for name in names))
    return roots


def test_all_profiles_that_come_with_the_service_are_valid() -> None:
    assert profile_names() == ("generic-arm", "generic-x86", "pi5-bare", "pi5-cooler", "rock5b")
    for name in profile_names():
        assert load_profile(name).name == name


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("raspberrypi,5-model-b", "brcm,bcm2712"), "pi5-bare"),
        # A Compute Module 5 has the same chip.
        (("raspberrypi,5-compute-module", "brcm,bcm2712"), "pi5-bare"),
        (("radxa,rock-5b", "rockchip,rk3588"), "rock5b"),
        (("xunlong,orangepi-5-plus", "rockchip,rk3588"), "rock5b"),
        (("vendor,unheard-of", "vendor,chip"), "generic-arm"),
    ],
)
def test_a_board_is_known_by_the_names_in_its_device_tree(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    assert find_profile(board_tree(tmp_path, *names)).name == found


def test_a_machine_without_a_device_tree_gets_a_generic_profile(tmp_path: Path) -> None:
    assert find_profile(HostRoots.under(tmp_path)).name.startswith("generic-")


def test_policies_are_named_after_the_first_cpu_of_their_cluster() -> None:
    rock = load_profile("rock5b")
    assert [policy_name(rock, index) for index in range(3)] == ["policy0", "policy4", "policy6"]


def test_vendor_and_mainline_zone_names_of_an_rk3588_mean_the_same_sensors() -> None:
    zones = load_profile("rock5b").zones
    for vendor, mainline in (("soc-thermal", "package-thermal"), ("bigcore1-thermal", "bigcore2-thermal")):
        assert any({vendor, mainline} <= set(zone.names) for zone in zones)


def test_an_unknown_board_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as error:
        load_profile("pi6")
    assert "pi6" in str(error.value)
    assert "pi5-bare" in error.value.hint


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("tau_s: 90", "tau_s: -90", "thermal[1].tau_s"),
        ("watts_per_ghz_v2", "watts_per_ghz", "clusters[0]"),
        ("decode_threads: 2", "decode_threads: 5", "decode_threads"),
        ("cpus: [0, 1, 2, 3]", "cpus: [0, 1, 1, 3]", "clusters"),
        ("khz: 1600000", "khz: 1500000", "clusters[0].opps"),
        ("down_c: 79", "down_c: 83", "governor"),
        ("soft_c: 80", "soft_c: 90", "trips"),
        ("name: pi5-bare", "name: [pi5", "YAML"),
    ],
)
def test_what_is_wrong_in_a_profile_is_said_with_its_place(tmp_path: Path, old: str, new: str, where: str) -> None:
    file = tmp_path / "own.yaml"
    text = (FOLDER / "pi5-bare.yaml").read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(ConfigError) as error:
        load_profile(str(file))
    assert str(file) in error.value.message
    assert where in error.value.message
    assert error.value.hint


def test_a_profile_of_ones_own_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text((FOLDER / "pi5-bare.yaml").read_text("utf-8").replace("name: pi5-bare", "name: own"), "utf-8")
    assert load_profile(str(file)).name == "own"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_profile(str(tmp_path / "none.yaml"))
