"""Which of the shipped files go where, for one version of systemd. Pure: texts in, texts out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

import msgspec

from magnitude.errors import ConfigError

# What the shipped files say; the installation's own paths take their place.
SHIPPED_COMMAND = "/usr/bin/magnitude"
SHIPPED_LIBRARY = "/usr/lib/magnitude/"

# The oldest systemd that the base units are written for (Debian 12).
OLDEST_SYSTEMD = 252

# What systemd takes literally: no blanks or quotes to be split at, no % and $ to be expanded.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+@-]+")
# Drop-ins carry the first version of systemd that understands them in front of their name.
_VERSIONED = re.compile(r"(\d+)-.*\.conf")

# Folder of the shipped file → folder below PREFIX/lib. systemd and udev look into all of them below /usr/lib,
# /usr/local/lib and /etc.
_FOLDERS = {
    "libexec": "magnitude",
    "optional": "magnitude/optional",
    "sysusers.d": "sysusers.d",
    "tmpfiles.d": "tmpfiles.d",
    "rules.d": "udev/rules.d",
    "system-preset": "systemd/system-preset",
    "journald.conf.d": "systemd/journald.conf.d",
    "system.conf.d": "systemd/system.conf.d",
    "timesyncd.conf.d": "systemd/timesyncd.conf.d",
    "NetworkManager": "NetworkManager/conf.d",
}
# Programs that read their drop-ins below /etc only. Images alone have such files.
_ETC_FOLDERS = {"sshd_config.d": "/etc/ssh/sshd_config.d"}
IMAGE_FOLDER = "image"

# agetty shows what is below /etc/issue.d; what is to be shown is known when the device runs.
ISSUE_LINK = "/etc/issue.d/50-magnitude.issue"
_ISSUE = "/run/magnitude-device/issue"
# Where images have files of ours beside those below the prefix.
ETC_FOLDERS = tuple(f"{folder}/" for folder in (*_ETC_FOLDERS.values(), "/etc/issue.d"))


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """What the units are for: `command` is the `magnitude` that they start, `prefix` where packages of this kind lie.

    `image`: the whole device is ours, so files that concern all of it come along. `command_in_home`: the command
    lies in a home folder, which the service otherwise does not see.
    """

    systemd_version: int
    prefix: str
    command: str
    image: bool = False
    command_in_home: bool = False


class InstalledFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to put in place; `path` begins with the prefix, or in images with /etc. `link_to`: it is a symbolic link
    to there, and has neither text nor mode."""

    path: str
    text: str = ""
    mode: int = 0
    link_to: str = ""


def plan(shipped: Mapping[str, str], installation: Installation) -> list[InstalledFile]:
    """The files of `installation`, in the order of their paths. Raises `ConfigError`."""
    if installation.systemd_version < OLDEST_SYSTEMD:
        raise ConfigError(
            f"systemd {installation.systemd_version} is too old: the units need {OLDEST_SYSTEMD} or newer",
            hint="Debian 12 and current Raspberry Pi OS have it; elsewhere write a unit for `magnitude serve`.",
        )
    for path in (installation.command, installation.prefix):
        if not _PLAIN_PATH.fullmatch(path):
            raise ConfigError(
                f"The path {path!r} cannot stand in a unit file",
                hint="Use an absolute path of letters, digits and . _ - + @ only, for example /opt/magnitude.",
            )
    files = []
    for name, text in shipped.items():
        destination = _destination(PurePosixPath(name), installation)
        if destination is not None:
            mode = 0o755 if "libexec" in name else 0o644
            files.append(InstalledFile(path=destination, text=_adapted(text, installation), mode=mode))
    if installation.command_in_home:
        files.append(_home_drop_in(installation))
    if installation.image:
        files.append(InstalledFile(path=ISSUE_LINK, link_to=_ISSUE))
    return sorted(files, key=lambda file: file.path)


def enabled(files: Iterable[InstalledFile]) -> list[tuple[str, str]]:
    """Units among `files` that start with the system: their folder of links (`multi-user.target.wants`) and path."""
    found = []
    for file in files:
        section = file.text.partition("\n[Install]\n")[2] if "/systemd/system/" in file.path else ""
        for targets in re.findall(r"(?m)^WantedBy=(.*)$", section):
            found += [(f"{target}.wants", file.path) for target in targets.split()]
    return found


def _destination(name: PurePosixPath, installation: Installation) -> str | None:
    """Where the shipped file `name` goes, or None when this installation does without."""
    parts = name.parts
    if parts[0] == IMAGE_FOLDER:
        if not installation.image:
            return None
        parts = parts[1:]
    library = f"{installation.prefix.rstrip('/')}/lib"
    if len(parts) == 1:
        return f"{library}/systemd/system/{parts[0]}"
    folder, rest = parts[0], "/".join(parts[1:])
    if folder in _ETC_FOLDERS:
        return f"{_ETC_FOLDERS[folder]}/{rest}"
    if folder in _FOLDERS:
        return f"{library}/{_FOLDERS[folder]}/{rest}"
    versioned = _VERSIONED.fullmatch(parts[-1])
    if versioned and int(versioned[1]) > installation.systemd_version:
        return None
    return f"{library}/systemd/system/{folder}/{rest}"


def _adapted(text: str, installation: Installation) -> str:
    library = f"{installation.prefix.rstrip('/')}/lib/magnitude/"
    return text.replace(SHIPPED_COMMAND, installation.command).replace(SHIPPED_LIBRARY, library)


def _home_drop_in(installation: Installation) -> InstalledFile:
    return InstalledFile(
        path=f"{installation.prefix.rstrip('/')}/lib/systemd/system/magnitude.service.d/installed-in-home.conf",
        text=(
            "[Service]\n"
            "# Magnitude is installed in a home folder, so the service has to see those; it cannot change them.\n"
            "ProtectHome=read-only\n"
        ),
        mode=0o644,
    )
