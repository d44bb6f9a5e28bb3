from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnitude.cli.main import app, find_verbs
from magnitude.errors import ConfigError, MagnitudeError
from magnitude.units.host import RootNeeded, lies_in_home, parse_version, require_root, systemd_version
from magnitude.units.shipped import UnitsMissing, shipped_folder

UNITS = "usr/local/lib/systemd/system"


def run(*arguments: str) -> str:
    find_verbs()
    result = CliRunner().invoke(app, ["install-units", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def install(root: Path, *arguments: str) -> str:
    return run("--root", str(root), "--command", "/opt/m/bin/magnitude", *arguments)


def test_it_says_what_it_put_in_place_and_what_to_do_next(tmp_path: Path) -> None:
    said = install(tmp_path, "--systemd-version", "252")
    assert f"new        {tmp_path / UNITS / 'magnitude.service'}" in said
    assert "Next:" in said
    unit = (tmp_path / UNITS / "magnitude.service").read_text()
    assert "ExecStart=/opt/m/bin/magnitude serve" in unit


def test_units_are_enabled_as_systemctl_would(tmp_path: Path) -> None:
    install(tmp_path, "--systemd-version", "252")
    for name in ("multi-user.target.wants/magnitude.service", "sockets.target.wants/magnitude.socket"):
        link = tmp_path / "etc/systemd/system" / name
        assert str(link.readlink()) == f"/{UNITS}/{link.name}"
    install(tmp_path / "other", "--systemd-version", "252", "--no-enable")
    assert not (tmp_path / "other/etc").exists()


def test_an_image_checks_every_boot(tmp_path: Path) -> None:
    install(tmp_path, "--systemd-version", "252", "--image")
    assert (tmp_path / "etc/systemd/system/multi-user.target.wants/magnitude-boot-check.service").is_symlink()
    install(tmp_path / "other", "--systemd-version", "252")
    assert not (tmp_path / "other/etc/systemd/system/multi-user.target.wants/magnitude-boot-check.service").exists()


def test_a_root_says_its_version_of_systemd_itself(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/aarch64-linux-gnu/systemd/libsystemd-shared-257.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert systemd_version(tmp_path) == 257
    install(tmp_path)
    assert (tmp_path / UNITS / "magnitude.service.d/254-restart-steps.conf").exists()


def test_without_a_systemd_to_be_seen_it_asks_for_the_version(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        install(tmp_path)
    assert "--systemd-version" in error.value.hint


def test_an_older_systemd_loses_the_drop_ins_of_the_newer(tmp_path: Path) -> None:
    install(tmp_path, "--systemd-version", "257")
    said = install(tmp_path, "--systemd-version", "253")
    assert "removed" in said
    assert {file.name for file in (tmp_path / UNITS / "magnitude.service.d").iterdir()} == {"253-notify-reload.conf"}


def test_removal_leaves_configuration_and_own_drop_ins(tmp_path: Path) -> None:
    own = tmp_path / "etc/systemd/system/magnitude.service.d/override.conf"
    own.parent.mkdir(parents=True)
    own.write_text("[Service]\nNice=5\n")
    install(tmp_path, "--systemd-version", "257", "--image")
    run("--root", str(tmp_path), "--remove")
    assert [file for file in tmp_path.rglob("*") if not file.is_dir()] == [own]


def test_a_dry_run_needs_no_root_and_writes_nothing(tmp_path: Path) -> None:
    said = install(tmp_path, "--systemd-version", "257", "--dry-run")
    assert "new " in said
    assert list(tmp_path.iterdir()) == []


def test_a_person_who_is_not_root_is_told_so(tmp_path: Path) -> None:
    require_root(tmp_path, uid=1000)
    require_root(Path("/"), uid=0)
    with pytest.raises(RootNeeded) as error:
        require_root(Path("/"), uid=1000)
    assert "root" in error.value.message
    assert "sudo" in error.value.hint


def test_a_root_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "usr").write_text("a file where a folder should be")
    with pytest.raises(MagnitudeError) as error:
        install(tmp_path, "--systemd-version", "257")
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("systemd 252 (252.39-1~deb12u2)\n+PAM", 252),
        ("systemd 257 (257.8-1)", 257),
        ("elogind 255", None),
        ("", None),
    ],
)
def test_the_version_of_systemd_is_read_from_its_first_line(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_a_temporary_folder_is_no_place_for_a_service() -> None:
    with pytest.raises(ConfigError) as error:
        lies_in_home([Path("/tmp/venv/bin/magnitude")])
    assert "/opt/magnitude" in error.value.hint


def test_a_home_that_lets_nobody_in_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError):
        lies_in_home([closed / "venv"])
    assert not lies_in_home([Path("/usr/bin/python3")])
    assert lies_in_home([Path("/home/magnitude-test-nobody/venv/bin/magnitude")])


def test_a_package_without_units_says_that_it_is_incomplete(tmp_path: Path) -> None:
    with pytest.raises(UnitsMissing):
        shipped_folder(tmp_path / "a" / "b")


def test_package_data_comes_before_a_checkout(tmp_path: Path) -> None:
    for folder in ("lib/magnitude/systemd", "systemd"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "magnitude.service").touch()
    assert shipped_folder(tmp_path / "lib/magnitude") == tmp_path / "lib/magnitude/systemd"
