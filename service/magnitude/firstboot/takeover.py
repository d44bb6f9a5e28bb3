"""What becomes of each file in the folder `magnitude` of the boot partition. Pure: bytes in, steps out.

Each file is taken over once. The order of its steps makes that hold over a power cut at any point: what it says is
written, then noted as taken, then the file is renamed, then the note goes. A file that comes back unchanged while its
note is there (the cut was before the rename, or the partition is read-only) is only renamed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from magnitude.errors import MagnitudeError
from magnitude.firstboot.login_keys import parse_login_keys
from magnitude.firstboot.parcel import SECRET, Found, Kind, Refused, connection_name, kind_of, text_of
from magnitude.firstboot.wifi import check_connection, keyfile_of, parse_wifi

WIFI_CONNECTION = "magnitude-wifi.nmconnection"


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where things go. `country` is the file that holds the two letters for the radio; members of `group` may read
    the configuration."""

    config: Path
    connections: Path
    login_keys: Path
    country: Path
    group: str = "magnitude"


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """A file to put in place. `group` may read it when it is not ""."""

    path: Path
    text: str
    mode: int
    group: str = ""

    def __repr__(self) -> str:
        return f"Write(path={str(self.path)!r})"  # no passphrase in a traceback


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """Write `writes`, note `digest`, rename the file; `secret`: and wipe what was in it."""

    name: str
    digest: str
    writes: tuple[Write, ...]
    secret: bool


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """It was taken over before; only the rename is left."""

    name: str
    secret: bool


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """Leave the file and say why beside it. `why` and `hint` may quote the file, `where` (for the log) never does."""

    name: str
    why: str
    hint: str
    where: str


Step = Take | Finish | Reject


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def plan(
    found: Sequence[Found],
    noted: Mapping[str, str],
    places: Places,
    check_config: Callable[[str], None],
) -> list[Step]:
    """The steps for `found`, in the order of the names. `noted`: name → digest of what was taken and not yet renamed.

    `check_config` raises `MagnitudeError` for a text that the service could not use.
    """
    steps: list[Step] = []
    claimed: dict[Path, str] = {}
    for file in sorted(found, key=lambda file: file.name):
        kind = kind_of(file.name)
        if kind is None:
            continue
        if noted.get(file.name) == digest_of(file.data) and not file.unreadable:
            steps.append(Finish(name=file.name, secret=kind in SECRET))
            continue
        try:
            writes = _writes(file, kind, places, check_config)
            rival = next((claimed[write.path] for write in writes if write.path in claimed), None)
            if rival is not None:
                raise Refused(f"{rival} is for the same purpose and was taken", hint="Keep one of the two")
        except MagnitudeError as error:
            steps.append(_rejected(file.name, error))
            continue
        claimed |= {write.path: file.name for write in writes}
        steps.append(Take(name=file.name, digest=digest_of(file.data), writes=writes, secret=kind in SECRET))
    return steps


def _writes(file: Found, kind: Kind, places: Places, check_config: Callable[[str], None]) -> tuple[Write, ...]:
    text = text_of(file, kind)
    if kind == "config":
        check_config(text)
        # It may hold API keys: for the service, not for every user.
        return (Write(path=places.config, text=text, mode=0o640, group=places.group),)
    if kind == "login keys":
        # sshd reads it as the user who logs in; public keys are no secret.
        return (Write(path=places.login_keys, text=parse_login_keys(text), mode=0o644),)
    if kind == "connection":
        check_connection(text)
        # NetworkManager ignores profiles that others than root may read.
        return (Write(path=places.connections / connection_name(file.name), text=text, mode=0o600),)
    wifi = parse_wifi(text)
    profile = Write(path=places.connections / WIFI_CONNECTION, text=keyfile_of(wifi), mode=0o600)
    country = Write(path=places.country, text=f"{wifi.country}\n", mode=0o644)
    return (profile, country) if wifi.country else (profile,)


def _rejected(name: str, error: MagnitudeError) -> Reject:
    # A settings error quotes what it found, which may be a key. Only the number of the line goes into the log.
    line = re.search(r"line \d+", error.message)
    where = error.message if isinstance(error, Refused) else line[0] if line else error.code
    return Reject(name=name, why=error.message, hint=error.hint, where=where)


def explanation(step: Reject) -> str:
    """The text of the file beside it, with ends of lines that every editor shows."""
    lines = [f"{step.name} was not taken over.", "", f"Why: {step.why}."]
    if step.hint:
        lines.append(f"What to do: {step.hint}.")
    lines += ["", "Change the file here, and start the device again."]
    return "".join(f"{line}\r\n" for line in lines)
