"""Debian root file systems with our wheel, its units and a tiny model in them, for a container or a guest to boot.

    root = build_root("bookworm")

Two layers, each cached below `cache_folder()` by a hash of all that goes into it: Debian with our dependencies
(minutes; made anew when `pyproject.toml` or this recipe changes), and on top of it the checkout's wheel and units
(seconds; made anew with every change of the sources). Nobody may write into a returned folder: boot an overlay or a
copy of it. Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
# Where the package lies inside a root: a virtual environment, as an administrator would make one.
PREFIX = "/opt/magnitude"
MODELS = "/var/lib/magnitude/models"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "udev", "procps", "python3", "python3-venv")
TINY = "tests/golden/genai_tiny_llama"
# What goes into the wheel, and therefore into its key.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "service", "systemd")
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
# The oldest glibc that wheels may ask for: bookworm has 2.36.
GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34, 35)


class RootFailed(Exception):
    """A step of building a root that failed, with the end of its output."""


def cache_folder() -> Path:
    """Where roots are kept: `$MAGNITUDE_HOME/system-tests`, as `scripts/test` sets it, or the checkout's."""
    home = os.environ.get("MAGNITUDE_HOME")
    return (Path(home) if home else CHECKOUT / ".magnitude") / "system-tests"


def build_root(suite: str, *, packages: Sequence[str] = ()) -> Path:
    """The root of Debian `suite` with `packages` besides the usual ones. Raises `RootFailed`."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    wanted = sorted({*PACKAGES, *packages})
    base_recipe = "".join(map(inspect.getsource, (_make_base, _download, _install)))
    root_recipe = "".join(map(inspect.getsource, (_make_root, _install_units, _write_tiny_model)))
    base_key = key_of(base_recipe, suite, PREFIX, *MASKED, *wanted, *_dependencies())
    root_key = key_of(root_recipe, base_key, *_contents([*SOURCES, TINY]))
    with only_one(cache):
        _drop_old(cache)
        base = cached(cache / f"base-{suite}-{base_key}", lambda folder: _make_base(folder, suite, wanted))
        wheel = cached(cache / f"wheel-any-{key_of(*_contents(SOURCES))}", build_wheel)
        return cached(cache / f"root-{suite}-{root_key}", lambda folder: _make_root(folder, base, wheel))


def build_wheel(folder: Path, *, version: str | None = None, edit: Callable[[Path], None] | None = None) -> Path:
    """Build the checkout's wheel into `folder`, with another version number, or from sources that `edit` has changed
    (it gets the folder of a copy)."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name) / "magnitude"
        sources.mkdir()
        for source in SOURCES:
            _copy(CHECKOUT / source, sources / source)
        if version:
            module = sources / "service/magnitude/__init__.py"
            text, found = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', module.read_text())
            assert found == 1, f"{module} names no version"
            module.write_text(text)
        if edit:
            edit(sources)
        _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", name, str(sources))
        (wheel,) = Path(name).glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


def python_of(root: Path) -> str:
    """The version of Python in `root`, such as `3.11`."""
    return (root / "usr/bin/python3").readlink().name.removeprefix("python")


def in_root(root: Path, *command: str) -> str:
    """Run a command in `root` without booting it; what it prints. Raises `RootFailed`."""
    return _run(
        "chroot",
        str(root),
        "/usr/bin/env",
        "-i",
        "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL=C.UTF-8",
        *command,
    )


def _make_base(root: Path, suite: str, packages: Sequence[str]) -> None:
    options = [
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Languages "none"',
    ]
    for folder in ("man", "doc", "locale", "info"):
        options.append(f"--dpkgopt=path-exclude=/usr/share/{folder}/*")
    _run("mmdebstrap", "--quiet", *options, suite, str(root), *apt_sources(suite))
    in_root(root, "systemd-machine-id-setup")  # without one systemd takes each boot for the first
    (root / "etc/hostname").write_text("board\n")
    for unit in MASKED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    in_root(root, "python3", "-m", "venv", PREFIX)
    with _wheels_in(root) as wheels:
        _download(wheels, python_of(root), _dependencies())
        _install(root, *_dependencies())


def _make_root(root: Path, base: Path, wheel: Path) -> None:
    # Links, not copies: what follows adds files, or puts new ones in the place of old ones.
    _run("cp", "--archive", "--link", f"{base}/.", str(root))
    with _wheels_in(root) as wheels:
        _run("cp", "--recursive", f"{wheel}/.", str(wheels))
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
    machine, tag = os.uname().machine, "cp" + python.replace(".", "")
    fits = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    fits += [f"--abi={abi}" for abi in (tag, "abi3", "none")]
    fits += [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    fits += [f"--platform=manylinux2014_{machine}", f"--platform=linux_{machine}"]
    _run(sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *fits, *requirements)


def _dependencies() -> list[str]:
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["project"]["dependencies"])


def apt_sources(suite: str) -> list[str]:
    """The host's own Debian archives, for another suite."""
    own = _run("sh", "-c", '. /etc/os-release && echo "$VERSION_CODENAME"').strip()
    listed = _run(
        "apt-get",
        "indextargets",
        "--format",
        "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
        "Origin: Debian",
    )
    lines = sorted({line.replace(f" {own}", f" {suite}") for line in listed.splitlines() if f" {own}" in line})
    if not lines:
        raise RootFailed(f"apt knows no archive of Debian {own}: run apt-get update")
    return lines


def cached(folder: Path, make: Callable[[Path], object]) -> Path:
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        make(unfinished)
        unfinished.rename(folder)
    os.utime(folder)
    return folder


def _drop_old(cache: Path) -> None:
    for folder in cache.glob("*-*-*"):
        if folder.is_dir() and time.time() - folder.stat().st_mtime > KEEP_S:
            shutil.rmtree(folder)


@contextlib.contextmanager
def only_one(cache: Path) -> Iterator[None]:
    """Two test runs at once must not build the same root."""
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _contents(names: Iterable[str]) -> Iterator[str]:
    """Names and hashes of all files below `names` in the checkout."""
    for name in names:
        top = CHECKOUT / name
        files = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]
        for path in files:
            if path.exists() and "__pycache__" not in path.parts:
                yield f"{path.relative_to(CHECKOUT)} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    elif source.exists():
        shutil.copy2(source, target)


def _run(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:]
        raise RootFailed(f"{' '.join(command)[:300]} ended with status {done.returncode}:\n{said}")
    return done.stdout
