from __future__ import annotations

from pathlib import Path

from magnitude.units.layout import InstalledFile
from magnitude.units.place import installed, list_path, place, remove

PREFIX = "/usr/local"


def file(name: str, text: str = "x", mode: int = 0o644) -> InstalledFile:
    return InstalledFile(path=f"{PREFIX}/lib/{name}", text=text, mode=mode)


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def changes(placed: list) -> dict[str, str]:
    return {one.path.name: one.change for one in placed}


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    files = [file("magnitude/helper", mode=0o755), file("systemd/system/a.service")]
    assert changes(place(files, tmp_path, PREFIX)) == {"helper": "new", "a.service": "new"}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.service")}
    assert changes(place(files, tmp_path, PREFIX)) == {"helper": "unchanged", "a.service": "unchanged"}
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.service")}
    assert (tmp_path / "usr/local/lib/magnitude/helper").stat().st_mode & 0o777 == 0o755


def test_an_upgrade_replaces_files_and_removes_those_no_longer_shipped(tmp_path: Path) -> None:
    place([file("systemd/system/a.service", "old"), file("systemd/system/a.service.d/253-x.conf")], tmp_path, PREFIX)
    placed = place([file("systemd/system/a.service", "new")], tmp_path, PREFIX)
    assert changes(placed) == {"a.service": "changed", "253-x.conf": "removed"}
    assert (tmp_path / "usr/local/lib/systemd/system/a.service").read_text() == "new"
    assert not (tmp_path / "usr/local/lib/systemd/system/a.service.d/253-x.conf").exists()


def test_what_the_admin_wrote_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "etc/systemd/system/a.service.d/override.conf"
    beside = tmp_path / "usr/local/lib/systemd/system/a.service.d/other.conf"
    for path in (own, beside):
        path.parent.mkdir(parents=True)
        path.write_text("[Service]\n")
    place([file("systemd/system/a.service"), file("systemd/system/a.service.d/253-x.conf")], tmp_path, PREFIX)
    place([file("systemd/system/a.service")], tmp_path, PREFIX)
    remove(tmp_path, PREFIX)
    assert files_below(tmp_path) == {str(own.relative_to(tmp_path)), str(beside.relative_to(tmp_path))}


def test_links_and_files_below_etc_are_put_and_taken_away_like_the_others(tmp_path: Path) -> None:
    link = InstalledFile(path="/etc/issue.d/50-magnitude.issue", link_to="/run/somewhere")
    drop_in = InstalledFile(path="/etc/ssh/sshd_config.d/10-magnitude.conf", text="x", mode=0o644)
    own = tmp_path / "etc/ssh/sshd_config.d/00-own.conf"
    own.parent.mkdir(parents=True)
    own.write_text("x")
    assert set(changes(place([link, drop_in], tmp_path, PREFIX)).values()) == {"new"}
    assert set(changes(place([link, drop_in], tmp_path, PREFIX)).values()) == {"unchanged"}
    assert str((tmp_path / "etc/issue.d/50-magnitude.issue").readlink()) == "/run/somewhere"
    place([link], tmp_path, PREFIX)
    assert not (tmp_path / "etc/ssh/sshd_config.d/10-magnitude.conf").exists()
    remove(tmp_path, PREFIX)
    assert files_below(tmp_path) == {str(own.relative_to(tmp_path))}


def test_what_is_installed_can_be_asked_for(tmp_path: Path) -> None:
    put = [file("magnitude/helper", mode=0o755), file("systemd/system/a.service", "[Install]\n")]
    place(put, tmp_path, PREFIX)
    assert installed(tmp_path, PREFIX) == put


def test_removal_takes_away_all_that_was_put_there(tmp_path: Path) -> None:
    place([file("magnitude/helper"), file("systemd/system/a.service")], tmp_path, PREFIX)
    gone = remove(tmp_path, PREFIX)
    assert {one.path.name for one in gone} == {"helper", "a.service", "installed-units"}
    assert files_below(tmp_path) == set()
    assert remove(tmp_path, PREFIX) == []


def test_a_dry_run_says_the_same_and_does_nothing(tmp_path: Path) -> None:
    files = [file("systemd/system/a.service")]
    assert changes(place(files, tmp_path, PREFIX, dry_run=True)) == {"a.service": "new"}
    assert files_below(tmp_path) == set()
    place(files, tmp_path, PREFIX)
    before = files_below(tmp_path)
    assert changes(remove(tmp_path, PREFIX, dry_run=True)) == {"a.service": "removed", "installed-units": "removed"}
    assert files_below(tmp_path) == before


def test_a_list_that_leads_elsewhere_removes_nothing_there(tmp_path: Path) -> None:
    kept = tmp_path / "etc/passwd"
    kept.parent.mkdir()
    kept.write_text("root")
    listed = list_path(tmp_path, PREFIX)
    listed.parent.mkdir(parents=True)
    listed.write_text(f"/etc/passwd\n{PREFIX}/lib/../../../etc/passwd\n")
    place([], tmp_path, PREFIX)
    assert kept.read_text() == "root"
