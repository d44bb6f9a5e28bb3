"""What the machine says about itself, and the one way to run its commands."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import magnitude
from magnitude.errors import ConfigError, MagnitudeError

# sd_booted(3): this folder exists exactly where systemd is the init system.
BOOTED = "run/systemd/system"

# systemctl on a busy board, a partition table on a slow card, a boot loader's environment on a worn one: far beyond
# what any of them takes, and a command that hangs ends all the same.
COMMAND_S = 60.0

# Hidden from the service by PrivateTmp= and ProtectHome= of its unit.
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - compared with, not written to
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))


class HostCommandFailed(MagnitudeError):
    """A command of the system did not do what it was asked."""

    code = "host_command_failed"


def parse_version(text: str) -> int | None:
    """The number in the first line of `systemctl --version`, for example `systemd 252 (252.39-1~deb12u2)`."""
    found = re.match(r"systemd (\d+)", text)
    return int(found[1]) if found else None


def systemd_version(root: Path) -> int:
    """The version of systemd below `root`. Raises `ConfigError` when there is none to be seen."""
    version = _running_version() if root == Path("/") else _version_below(root)
    if version is None:
        raise ConfigError(
            f"No systemd is found below {root}",
            hint="Name its version: --systemd-version 257. `magnitude serve` needs no systemd.",
        )
    return version


def _running_version() -> int | None:
    try:
        return parse_version(output_of(("systemctl", "--version")))
    except HostCommandFailed:
        return None


def _version_below(root: Path) -> int | None:
    """systemd's private library carries the version in its name: libsystemd-shared-257.so, or -257.7-1.so."""
    for pattern in ("usr/lib/systemd", "usr/lib/*/systemd", "lib/systemd", "lib/*/systemd"):
        for library in root.glob(f"{pattern}/libsystemd-shared-*.so"):
            if found := re.match(r"libsystemd-shared-(\d+)", library.name):
                return int(found[1])
    return None


class RootNeeded(MagnitudeError):
    """What was asked for is for root."""

    code = "root_needed"


def require_root(root: Path, uid: int) -> None:
    """Raises `RootNeeded` unless the user `uid` may change the system below `root`."""
    if root == Path("/") and uid != 0:
        raise RootNeeded(
            "Only root can install units on this machine",
            hint="Use sudo with the full path of this command, --root DIR to look at the files, or --dry-run.",
        )


def is_booted(root: Path = Path("/")) -> bool:
    """Whether systemd is the init system of this machine."""
    return root == Path("/") and (root / BOOTED).is_dir()


def is_active(unit: str) -> bool:
    """Whether `unit` runs now."""
    return run_quietly(("systemctl", "is-active", "--quiet", unit)) is None


def own_command() -> str:
    """The `magnitude` of the environment that this process runs in. Raises `ConfigError`."""
    command = Path(sys.executable).parent / "magnitude"
    if not command.is_file():
        raise ConfigError(
            f"There is no {command}", hint="Name the command that the unit shall start: --command /path/to/magnitude."
        )
    return str(command)


def own_folders(command: str) -> list[Path]:
    """Everything that the service has to read to start `command` of this environment."""
    return [Path(command), Path(sys.prefix), Path(sys.base_prefix), Path(magnitude.__file__).parent]


def lies_in_home(paths: Sequence[Path]) -> bool:
    """Whether one of `paths` is below a home folder. Raises `ConfigError` where the service could not read it."""
    for path in paths:
        if any(path.is_relative_to(folder) for folder in _TEMPORARY):
            raise ConfigError(
                f"{path} lies in a temporary folder, which the service does not see",
                hint="Install Magnitude elsewhere, for example into a virtual environment in /opt/magnitude.",
            )
        for folder in (path, *path.parents):
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                raise ConfigError(
                    f"Magnitude is installed in {path}, and {folder} lets only its owner in: the service, which runs "
                    "as the user magnitude, could not start",
                    hint="Install it elsewhere, for example into a virtual environment in /opt/magnitude.",
                )
    return any(path.is_relative_to(home) for path in paths for home in _HOMES)


def run_quietly(command: Sequence[str], within_s: float = COMMAND_S) -> str | None:
    """Run `command`; None when it worked, otherwise why not, also when it did not end `within_s`."""
    try:
        output_of(command, within_s=within_s)
    except HostCommandFailed as error:
        return error.message
    return None


def output_of(
    command: Sequence[str], *, given: str = "", within_s: float = COMMAND_S, to_terminal: bool = False
) -> str:
    """What `command` prints, with `given` on its standard input. `to_terminal`: people see its words instead, and
    nothing is returned. Raises `HostCommandFailed`, also after `within_s`."""
    program = shutil.which(command[0])
    if program is None:
        raise HostCommandFailed(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            (program, *command[1:]),
            input=given,
            capture_output=not to_terminal,
            encoding="utf-8",
            errors="replace",
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HostCommandFailed(f"{' '.join(command)} did not end within {within_s:.0f} s") from None
    except OSError as error:
        raise HostCommandFailed(f"{command[0]} cannot be run: {error.strerror or error}") from error
    if done.returncode:
        said = f": {done.stderr.strip()}" if done.stderr and done.stderr.strip() else ""
        raise HostCommandFailed(f"{' '.join(command)} ended with status {done.returncode}{said}")
    return done.stdout or ""
