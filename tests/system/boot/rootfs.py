"""Debian root file systems with our wheel, its units and a tiny model in them, for a container or a guest to boot.

    root = build_root("bookworm")

Two layers, each cached below `cache_folder()` by a hash of all that goes into it: Debian with our dependencies
(minutes; made anew when `pyproject.toml` or this recipe changes), and on top of it the checkout's wheel and units
(seconds; made anew with every change of the sources). Nobody may write into a returned folder: boot an overlay or a
copy of it. Needs root.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# Programs beside this file are run by hand, too: the checkout is not on the import path then.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from image.guest.debian import (
    CHECKOUT,
    SOURCES,
    apt_sources,
    build_wheel,
    cached,
    contents,
    dependencies,
    drop_old,
    in_root,
    key_of,
    make_root,
    only_one,
    python_of,
    run,
    wheel_options,
)

__all__ = ["apt_sources", "build_wheel", "in_root", "python_of"]  # for the tests

# Where the package lies inside a root: a virtual environment, as an administrator would make one.
PREFIX = "/opt/magnitude"
MODELS = "/var/lib/magnitude/models"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "udev", "procps", "python3", "python3-venv")
TINY = "tests/golden/genai_tiny_llama"
# Units that a test never needs and that would run at some moment of their own.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "systemd-timesyncd.service",
)
# A root that nobody has asked for so long is deleted when the next one is built.
KEEP_S = 24 * 3600.0


def cache_folder() -> Path:
    """Where roots are kept: `$MAGNITUDE_HOME/system-tests`, as `scripts/test` sets it, or the checkout's."""
    home = os.environ.get("MAGNITUDE_HOME")
    return (Path(home) if home else CHECKOUT / ".magnitude") / "system-tests"


def build_root(suite: str, *, packages: Sequence[str] = ()) -> Path:
    """The root of Debian `suite` with `packages` besides the usual ones. Raises `BuildFailed`."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    wanted = sorted({*PACKAGES, *packages})
    base_recipe = "".join(map(inspect.getsource, (make_root, _make_base, _download, _install)))
    root_recipe = "".join(map(inspect.getsource, (_make_root, _install_units, _write_tiny_model)))
    base_key = key_of(base_recipe, suite, PREFIX, *MASKED, *wanted, *dependencies())
    root_key = key_of(root_recipe, base_key, *contents([*SOURCES, TINY]))
    with only_one(cache):
        drop_old(cache, KEEP_S)
        base = cached(cache / f"base-{suite}-{base_key}", lambda folder: _make_base(folder, suite, wanted))
        wheel = cached(cache / f"wheel-any-{key_of(*contents(SOURCES))}", build_wheel)
        return cached(cache / f"root-{suite}-{root_key}", lambda folder: _make_root(folder, base, wheel))


def _make_base(root: Path, suite: str, packages: Sequence[str]) -> None:
    make_root(root, suite, packages)
    in_root(root, "systemd-machine-id-setup")  # without one systemd takes each boot for the first
    (root / "etc/hostname").write_text("board\n")
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    in_root(root, "python3", "-m", "venv", PREFIX)
    with _wheels_in(root) as wheels:
        _download(wheels, python_of(root), dependencies())
        _install(root, *dependencies())


def _make_root(root: Path, base: Path, wheel: Path) -> None:
    # Links, not copies: what follows adds files, or puts new ones in the place of old ones.
    run("cp", "--archive", "--link", f"{base}/.", str(root))
    with _wheels_in(root) as wheels:
        run("cp", "--recursive", f"{wheel}/.", str(wheels))
        _install(root, "magnitude")
    in_root(root, "ln", "-s", f"{PREFIX}/bin/magnitude", "/usr/local/bin/magnitude")
    _install_units(root)
    _write_tiny_model(root / MODELS.lstrip("/") / "tiny")
    in_root(root, "chown", "-R", "magnitude:magnitude", str(Path(MODELS).parent))


def _install_units(root: Path) -> None:
    in_root(root, "magnitude", "install-units")


def _write_tiny_model(folder: Path) -> None:
    """A decoder of random weights in ONNX Runtime GenAI's layout, as people bring their own."""
    shutil.copytree(CHECKOUT / TINY, folder)


@contextlib.contextmanager
def _wheels_in(root: Path) -> Iterator[Path]:
    """A folder inside `root` for wheels that `_install` finds; it is gone afterwards."""
    wheels = root / "tmp/wheels"
    wheels.mkdir()
    yield wheels
    shutil.rmtree(wheels)


def _install(root: Path, *requirements: str) -> None:
    in_root(root, f"{PREFIX}/bin/pip", "install", "--quiet", "--no-index", "--find-links=/tmp/wheels", *requirements)


def _download(folder: Path, python: str, requirements: Iterable[str]) -> None:
    """Wheels for another Python than ours, by the host's pip and its configuration."""
    fits = wheel_options(python, os.uname().machine)
    run(sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *fits, *requirements)
