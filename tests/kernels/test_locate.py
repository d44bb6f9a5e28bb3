"""Where the library of kernels is looked for, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

from magnitude.kernels.locate import FILE, VARIABLE, library_path, why_not


def test_the_library_is_the_one_that_was_installed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    assert library_path({}, [tmp_path]) == tmp_path / FILE
    assert why_not({}, [tmp_path]) == ""


def test_a_variable_names_another_one(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    other = tmp_path / "other.so"
    other.write_bytes(b"")
    assert library_path({VARIABLE: str(other)}, [tmp_path]) == other


def test_without_a_library_the_installation_is_said_to_have_none(tmp_path: Path) -> None:
    assert library_path({}, [tmp_path]) is None
    assert "built without kernels" in why_not({}, [tmp_path])
    assert str(tmp_path / FILE) in why_not({}, [tmp_path])


def test_a_variable_that_names_nothing_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    named = {VARIABLE: str(tmp_path / "gone.so")}
    assert library_path(named, [tmp_path]) is None
    assert "gone.so, which is no file" in why_not(named, [tmp_path])


def test_an_empty_variable_switches_kernels_off(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"")
    assert library_path({VARIABLE: ""}, [tmp_path]) is None
    assert "switches kernels off" in why_not({VARIABLE: ""}, [tmp_path])


def test_an_editable_installation_has_it_beside_its_sources(tmp_path: Path) -> None:
    sources, built = tmp_path / "sources", tmp_path / "built"
    built.mkdir()
    (built / FILE).write_bytes(b"")
    assert library_path({}, [built, sources]) == built / FILE
    assert library_path({}, [sources, built]) == built / FILE
