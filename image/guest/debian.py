"""Debian root file systems from the archives that this machine's apt knows, and the checkout's wheel for them.

What the image to try and the system tests have in common: running a step, a cache by the hash of a recipe, another
suite's or architecture's archives, commands inside a root that is not booted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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

from image.debian.kernels_library import WITHOUT

CHECKOUT = Path(__file__).resolve().parents[2]
# What goes into the wheel, and therefore into its key.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "service", "systemd")
# The oldest glibc that wheels may ask for: bookworm has 2.36.
GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34, 35)
# Debian's names of architectures, and those of wheels and of uname.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Nobody reads them on a device, and they are half of a small root.
LEFT_OUT = ("man", "doc", "locale", "info")


class BuildFailed(Exception):
    """A step of a build that failed, with the end of its output."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command to its end; what it prints. Raises `BuildFailed`."""
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:]
        raise BuildFailed(f"{' '.join(map(str, command))[:300]} ended with status {done.returncode}:\n{said}")
    return done.stdout


def own_architecture() -> str:
    """Debian's name of this machine's architecture. Raises `BuildFailed` for one that Magnitude is not made for."""
    for architecture, machine in MACHINES.items():
        if os.uname().machine == machine:
            return architecture
    raise BuildFailed(f"{os.uname().machine} is none of {', '.join(MACHINES.values())}")


def apt_sources(suite: str) -> list[str]:
    """The host's own Debian archives, for another suite."""
    own = run("sh", "-c", '. /etc/os-release && echo "$VERSION_CODENAME"').strip()
    listed = run(
        "apt-get",
        "indextargets",
        "--format",
        "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
        "Origin: Debian",
    )
    lines = sorted({line.replace(f" {own}", f" {suite}") for line in listed.splitlines() if f" {own}" in line})
    if not lines:
        raise BuildFailed(f"apt knows no archive of Debian {own}: run apt-get update")
    return lines


def make_root(
    root: Path,
    suite: str,
    packages: Sequence[str],
    *,
    architecture: str | None = None,
    left_out: Sequence[str] = (),
) -> None:
    """A root file system of `packages` and what they need, without documentation and without the files of packages
    that the patterns `left_out` name. Raises `BuildFailed`."""
    options = [
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        '--aptopt=Acquire::Languages "none"',
    ]
    if architecture:
        options.append(f"--architectures={architecture}")
    patterns = [*(f"/usr/share/{folder}/*" for folder in LEFT_OUT), *left_out]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in patterns]
    run("mmdebstrap", "--quiet", *options, suite, root, *apt_sources(suite))


def fetch_packages(folder: Path, suite: str, architecture: str, script: str) -> None:
    """Run `script` in `folder` with an apt that knows the archives of `suite` for `architecture`, and nothing else.

    For packages that are unpacked and not installed. Raises `BuildFailed`.
    """
    hook = folder / "fetch.sh"
    hook.write_text(f'set -eu\nexport APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"\ncd {folder}\n{script}')
    # A root of which nothing is made: it only lends its package lists.
    run("mmdebstrap", "--mode=root", "--variant=custom", f"--architectures={architecture}",
        '--aptopt=Acquire::Languages "none"', f"--customize-hook=sh {hook}", suite, "/dev/null",
        *apt_sources(suite))  # fmt: skip
    hook.unlink()


def in_root(root: Path, *command: str) -> str:
    """Run a command in `root` without booting it; what it prints. Raises `BuildFailed`."""
    return run(
        "chroot",
        root,
        "/usr/bin/env",
        "-i",
        "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL=C.UTF-8",
        *command,
    )


def python_of(root: Path) -> str:
    """The version of Python in `root`, such as `3.11`."""
    return (root / "usr/bin/python3").readlink().name.removeprefix("python")


def dependencies(*extras: str) -> list[str]:
    """What the package needs, with its `extras`, as `pyproject.toml` says it."""
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    further = project["optional-dependencies"]
    return [*project["dependencies"], *(name for extra in extras for name in further[extra])]


def wheel_options(python: str, machine: str) -> list[str]:
    """Options of pip that choose wheels for another Python or machine than the one it runs on."""
    tag = "cp" + python.replace(".", "")
    fits = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    fits += [f"--abi={abi}" for abi in (tag, "abi3", "none")]
    fits += [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS]
    return [*fits, f"--platform=manylinux2014_{machine}", f"--platform=linux_{machine}"]


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
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", WITHOUT, "--wheel-dir", name, sources)
        (wheel,) = Path(name).glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


def cached(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, made by `make` unless it is there; one that was not finished does not count."""
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)
    os.utime(folder)
    return folder


def drop_old(cache: Path, keep_s: float) -> None:
    """Delete what nobody has asked for so long."""
    for folder in cache.glob("*-*-*"):
        if folder.is_dir() and time.time() - folder.stat().st_mtime > keep_s:
            shutil.rmtree(folder)


@contextlib.contextmanager
def only_one(cache: Path) -> Iterator[None]:
    """Two runs at once must not build the same thing."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def contents(names: Iterable[str | Path]) -> Iterator[str]:
    """Names and hashes of all files below `names` in the checkout, or elsewhere when they are absolute."""
    for name in names:
        top = CHECKOUT / name
        files = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]
        for path in files:
            if path.exists() and "__pycache__" not in path.parts:
                yield f"{os.path.relpath(path, CHECKOUT)} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    elif source.exists():
        shutil.copy2(source, target)
