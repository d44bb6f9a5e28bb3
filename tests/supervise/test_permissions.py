from __future__ import annotations

from pathlib import Path

from magnitude.supervise.permissions import ASK_EVERY_S, REQUEST_NAME, PermissionRequests
from magnitude.units.shipped import read_shipped, shipped_folder

LIMIT = Path("/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq")


def test_what_was_refused_is_asked_for(tmp_path: Path) -> None:
    assert PermissionRequests(tmp_path).ask(LIMIT, 10.0)
    assert (tmp_path / REQUEST_NAME).read_text() == f"{LIMIT}\n"


def test_asking_again_at_once_disturbs_nobody(tmp_path: Path) -> None:
    requests = PermissionRequests(tmp_path)
    requests.ask(LIMIT, 10.0)
    (tmp_path / REQUEST_NAME).unlink()
    assert not requests.ask(LIMIT, 10.0 + ASK_EVERY_S / 2)
    assert not (tmp_path / REQUEST_NAME).exists()
    assert requests.ask(LIMIT, 10.0 + ASK_EVERY_S)
    assert (tmp_path / REQUEST_NAME).exists()


def test_without_a_run_folder_asking_is_in_vain_and_harmless(tmp_path: Path) -> None:
    assert not PermissionRequests(tmp_path / "none").ask(LIMIT, 10.0)


def test_systemd_watches_the_file_that_is_written() -> None:
    shipped = read_shipped(shipped_folder())
    assert f"/run/magnitude/service/{REQUEST_NAME}\n" in shipped["magnitude-permissions.path"]
