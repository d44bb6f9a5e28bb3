"""Pictures on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import pyplot

from magnitude.errors import ConfigError
from magnitude.picture import can_plot, picture


@pytest.mark.parametrize("kind", [".png", ".svg", ".pdf"])
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    for name in ("one", "other"):
        with picture(tmp_path / f"{name}{kind}", 2, sharex=True) as (_, panels):
            panels[1].plot([1, 2], [3, 4])
    one, other = ((tmp_path / f"{name}{kind}").read_bytes() for name in ("one", "other"))
    assert one == other
    assert b"Date" not in one


def test_another_kind_of_file_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kind of plot"):
        can_plot(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match="no kind of plot"), picture(tmp_path / "a.txt"):
        pytest.fail("nothing is drawn")


def test_a_folder_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written") as caught, picture(tmp_path / "none/a.svg"):
        pass
    assert caught.value.hint


def test_a_figure_that_could_not_be_drawn_is_let_go_of_and_not_written(tmp_path: Path) -> None:
    before = pyplot.get_fignums()
    with pytest.raises(ZeroDivisionError), picture(tmp_path / "a.svg"):
        raise ZeroDivisionError
    assert pyplot.get_fignums() == before
    assert not (tmp_path / "a.svg").exists()
