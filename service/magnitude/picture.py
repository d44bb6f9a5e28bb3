"""The one way to draw: figures of matplotlib, which the `report` extra brings, written to a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from magnitude.errors import ConfigError

# What matplotlib writes without further programs, and everybody can open.
KINDS = (".png", ".svg", ".pdf")
# Without the date of writing the same figures give the same bytes.
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def can_plot(target: Path) -> None:
    """To be asked before what is to be drawn is computed. Raises `ConfigError` for another kind of file than .png,
    .svg and .pdf, and without matplotlib."""
    if target.suffix not in KINDS:
        raise ConfigError(
            f"{target} is no kind of plot that is known", hint=f"Let it end in {', '.join(KINDS)}", param="--plot"
        )
    try:
        import matplotlib  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ConfigError(
            "a plot needs matplotlib, which is not installed", hint="pip install 'magnitude[report]'", param="--plot"
        ) from error


@contextlib.contextmanager
def picture(target: Path, rows: int = 1, columns: int = 1, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its panels (`settings` as of `pyplot.subplots`), written when the block ends. The kind of file
    goes by the name; the same figures give the same bytes. Raises `ConfigError` as `can_plot`, and where the file
    cannot be written."""
    can_plot(target)
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "magnitude"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(rows, columns, **settings)
    try:
        yield figure, panels
        figure.tight_layout()
        _write(figure, target)
    finally:
        pyplot.close(figure)


def _write(figure: Any, target: Path) -> None:
    try:
        figure.savefig(target, dpi=110, metadata=UNDATED.get(target.suffix))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the plot {target} cannot be written: {error}",
            hint="Name a file in a folder that exists and that you may write, ending in .png, .svg or .pdf",
            param="--plot",
        ) from error
