from __future__ import annotations

from pathlib import Path

from magnitude.paths import SYSTEM_CONFIG, find_paths


def test_the_system_service_uses_the_systems_folders() -> None:
    paths = find_paths({}, uid=0)
    assert paths.models == Path("/var/lib/magnitude/models")
    assert paths.run == Path("/run/magnitude")
    assert paths.config == SYSTEM_CONFIG
    assert paths.unix_socket == Path("/run/magnitude/magnitude.sock")


def test_a_person_gets_the_xdg_folders() -> None:
    environ = {"HOME": "/home/p", "XDG_RUNTIME_DIR": "/run/user/1000"}
    paths = find_paths(environ, uid=1000)
    assert paths.models == Path("/home/p/.local/share/magnitude/models")
    assert paths.run == Path("/run/user/1000/magnitude")
    moved = find_paths({**environ, "XDG_DATA_HOME": "/data", "XDG_CACHE_HOME": "relative/ignored"}, uid=1000)
    assert moved.state == Path("/data/magnitude")
    assert moved.cache == Path("/home/p/.cache/magnitude")


def test_one_home_holds_everything_and_wins(tmp_path: Path) -> None:
    paths = find_paths({"MAGNITUDE_HOME": str(tmp_path), "STATE_DIRECTORY": "/var/lib/other"}, uid=0)
    assert paths.models == tmp_path / "models"
    assert paths.unix_socket == tmp_path / "run/magnitude.sock"
    assert paths.config == tmp_path / "magnitude.yaml"


def test_systemds_folders_are_followed_and_the_first_one_counts() -> None:
    environ = {"STATE_DIRECTORY": "/var/lib/private/m:/var/lib/private/second", "RUNTIME_DIRECTORY": "/run/m"}
    paths = find_paths(environ, uid=990)
    assert paths.models == Path("/var/lib/private/m/models")
    assert paths.run == Path("/run/m")


def test_a_named_configuration_wins_everywhere(tmp_path: Path) -> None:
    named = {"MAGNITUDE_CONFIG": str(tmp_path / "c.yaml")}
    assert find_paths(named, uid=0).config == tmp_path / "c.yaml"
    assert find_paths({**named, "MAGNITUDE_HOME": "/h"}, uid=0).config == tmp_path / "c.yaml"
