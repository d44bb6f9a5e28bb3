"""Small files that survive a power cut: written whole or not at all, checked when read.

`write_atomic` replaces one file. `StateFile` adds what state on flash needs: a schema number, a checksum, one
previous generation (`NAME.bak`), a place for broken files (`NAME.broken-1`, `NAME.broken-2`), and one for what
another version of the program wrote (`NAME.schema-3`), which finds it there when it comes back. Reading never fails
and writing never raises for the storage's sake: a service on a worn or read-only card keeps serving.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")

Source = Literal["file", "previous", "default"]

MAX_STATE_BYTES = 16 * 1024 * 1024  # state is small; a larger file is not ours and must not fill the memory
BROKEN_KEPT = 2  # enough to look at what happened, too few to fill a card in a restart loop

_log = logging.getLogger(__name__)


def write_atomic(path: Path | str, data: bytes, mode: int = 0o644) -> None:
    """Replace the file `path` by `data`: after a crash at any moment it holds the old bytes or the new ones.

    The temporary file lies in the same folder, because a rename is atomic within one file system only. The folder
    is synced too: without that the rename itself can be lost. Raises `OSError`; the old file is then untouched.
    """
    path = Path(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in `folder` durable. File systems that cannot sync a folder are let off."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network and FUSE file systems answer EINVAL
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(
    path: Path, *, as_name: str | None = None, label: str = "broken", companions: Sequence[str] = ()
) -> str:
    """Move the file `path` out of the way, to `NAME.broken-1` beside it; older ones move up, the oldest goes.

    `companions` are endings of files that belong to it and go along. Returns the new name, or "" when the folder
    refuses: the file is where it was then.
    """
    name = as_name or path.name
    names = [f"{name}.{label}-{n}" for n in range(1, BROKEN_KEPT + 1)]
    try:
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if (path.parent / newer).exists():
                _move(path.with_name(newer), older, companions)
        _move(path, names[0], companions)
        sync_folder(path.parent)
    except OSError:
        return ""
    return names[0]


def _move(path: Path, name: str, companions: Sequence[str]) -> None:
    for ending in companions:
        companion = path.with_name(path.name + ending)
        target = path.with_name(name + ending)
        if companion.exists():
            companion.replace(target)
        else:
            target.unlink(missing_ok=True)
    path.replace(path.with_name(name))


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    sha256: str  # over the bytes of `value` as they stand in the file
    value: msgspec.Raw


class Unusable(Exception):
    """Why the content of a state file is not used."""


class OtherSchema(Unusable):
    """The content is whole, and of another version of the program."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(f"its schema is {found}, this version reads {expected}")
        self.schema = found


def sealed(value: object, *, schema: int) -> bytes:
    """`value` as JSON with its schema number and a checksum."""
    body = msgspec.json.encode(value)
    return msgspec.json.encode(
        _Envelope(schema=schema, sha256=hashlib.sha256(body).hexdigest(), value=msgspec.Raw(body))
    )


def fault_of(data: bytes) -> str:
    """What is wrong with sealed bytes, of whichever schema; "" when they are whole."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"torn or not ours: {error}" if data else "empty"
    whole = hashlib.sha256(bytes(envelope.value)).hexdigest() == envelope.sha256
    return "" if whole else "its checksum does not match"


def unsealed(data: bytes, type_: type[T], *, schema: int) -> T:
    """What `sealed` was given. Raises `Unusable` with the reason for content that is not whole or not ours, and
    `OtherSchema` for what another version wrote."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unusable(f"it is torn or not ours: {error}" if data else "it is empty") from error
    if envelope.schema != schema:
        raise OtherSchema(envelope.schema, schema)
    body = bytes(envelope.value)
    if hashlib.sha256(body).hexdigest() != envelope.sha256:
        raise Unusable("its checksum does not match")
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unusable(f"its content does not fit: {error}") from error


class StateFile(Generic[T]):
    """State of type `type_` (a msgspec struct) in the JSON file `path`, for one process at a time. Its threads may
    save at once: they wait for each other.

    `schema` is raised whenever old content must not be read any more. `off` is empty unless the last save failed
    (read-only or full storage): then it is the reason, until one succeeds. `source` says where the last `load` came
    from.
    """

    def __init__(self, path: Path | str, type_: type[T], *, schema: int) -> None:
        self.path = Path(path)
        self.schema = schema
        self.off = ""
        self.source: Source = "default"
        self._previous = self.path.with_name(self.path.name + ".bak")
        self._type = type_
        self._saving = threading.Lock()

    def load(self, default: Callable[[], T]) -> T:
        """The saved state, else its previous generation, else `default()`. Never raises for the file's sake."""
        self._remove_leftovers()
        waiting = self._kept_for(self.schema)
        generations: tuple[tuple[Path, Source], ...]
        generations = ((self.path, "file"), (waiting, "file"), (self._previous, "previous"))
        for path, source in generations:
            try:
                value = self._decode(path)
                if path == waiting:
                    with contextlib.suppress(OSError):  # read-only storage: it is found there the next time
                        path.replace(self.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("state file %s cannot be read", path, extra={"fields": {"error": str(error)}})
                continue
            except OtherSchema as other:
                self._keep_for_its_version(path, other)
                continue
            except Unusable as why:
                kept = set_aside(path, as_name=self.path.name)
                _log.warning(
                    "state file %s is not usable and was set aside",
                    path,
                    extra={"fields": {"why": str(why), "kept_as": kept or "nothing, the folder is read-only"}},
                )
                continue
            self.source = source
            return value
        self.source = "default"
        return default()

    def remove(self) -> None:
        """Take it away with its previous generation. Storage that refuses is left as it is."""
        with self._saving, contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self._previous.unlink(missing_ok=True)

    def save(self, value: T) -> bool:
        """Write `value` and keep what was there as the previous generation. False when the storage refuses."""
        with self._saving:
            return self._save(sealed(value, schema=self.schema))

    def _save(self, data: bytes) -> bool:
        try:
            self._keep_previous()
            write_atomic(self.path, data)
        except OSError as error:
            if not self.off:
                _log.warning("state is not saved to %s any more", self.path, extra={"fields": {"error": str(error)}})
            self.off = f"{self.path} cannot be written: {error.strerror or error}"
            return False
        if self.off:
            _log.info("state is saved to %s again", self.path)
        self.off = ""
        return True

    def _kept_for(self, schema: int) -> Path:
        """Where content of `schema` waits for a version that reads it."""
        return self.path.with_name(f"{self.path.name}.schema-{schema}")

    def _keep_for_its_version(self, path: Path, other: OtherSchema) -> None:
        kept = self._kept_for(other.schema)
        try:
            if path == self._previous and kept.exists():
                path.unlink()  # its successor is kept
            else:
                path.replace(kept)
            sync_folder(path.parent)
        except OSError:
            kept = path
        _log.warning(
            "state file %s is of another version and was set aside",
            path,
            extra={"fields": {"why": str(other), "kept_as": kept.name}},
        )

    def _decode(self, path: Path) -> T:
        with path.open("rb") as file:
            data = file.read(MAX_STATE_BYTES + 1)
        if len(data) > MAX_STATE_BYTES:
            raise Unusable(f"it is larger than {MAX_STATE_BYTES} bytes")
        return unsealed(data, self._type, schema=self.schema)

    def _keep_previous(self) -> None:
        """Let the current file become the previous generation, if it is good: a broken one must not push out a
        good one. A hard link keeps the current name in place all the time."""
        try:
            self._decode(self.path)
        except (OSError, Unusable):
            return
        link = self.path.with_name(f".{self.path.name}.bak.tmp")
        link.unlink(missing_ok=True)
        try:
            link.hardlink_to(self.path)
        except OSError:  # FAT and some FUSE file systems have no hard links
            write_atomic(self._previous, self.path.read_bytes())
        else:
            link.replace(self._previous)
            link.unlink(missing_ok=True)  # renaming a link onto another one of the same file leaves both

    def _remove_leftovers(self) -> None:
        """Drop temporary files of a writer that was killed."""
        with contextlib.suppress(OSError):
            for leftover in self.path.parent.glob(f".{self.path.name}.*tmp"):
                leftover.unlink(missing_ok=True)
