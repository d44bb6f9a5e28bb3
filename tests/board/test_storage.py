from __future__ import annotations

from pathlib import Path

from magnitude.board import free_bytes, storage_of


def test_a_folder_that_does_not_exist_yet_is_judged_by_its_nearest_ancestor(tmp_path: Path) -> None:
    storage = storage_of(tmp_path / "not/yet/there")
    assert storage.folder == str(tmp_path)
    assert 0 < storage.free_bytes <= storage.total_bytes
    assert not storage.read_only


def test_free_bytes_never_exceeds_the_file_system() -> None:
    assert 0 <= free_bytes(Path("/")) <= storage_of(Path("/")).total_bytes


def test_a_pseudo_file_system_has_no_room() -> None:
    assert free_bytes(Path("/proc")) == 0
