"""Conversations on disk: one slot of the KV memory becomes one file, and a file any free slot again.

The service does this itself, straight between the memfd and the file: no engine takes part and no second copy is
made in memory. A file appears whole or not at all (temporary file, fsync, rename, fsync of the folder), is readable
by the service's user only, and is never believed without its checksum: a restored slot's header is written last.

Storage that is read-only, full or worn costs the saving and nothing else: `off` says why, one line is logged when
that begins and one when it ends.

What another version of the program has saved waits for that version: a system that is taken back to the one before
finds its conversations, and the newer one its own when it comes again. Such files are the first to go when room is
short.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import mmap
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from magnitude.board.boot import EARLIEST_S, read_boot_id, same_boot
from magnitude.board.roots import HostRoots
from magnitude.engine.slot_header import SlotState
from magnitude.errors import MagnitudeError
from magnitude.schedule.kv_memory import KvMemory
from magnitude.schedule.saved_slot import (
    DIGEST_BYTES,
    Head,
    OtherFormat,
    SavedSlot,
    SavedSlotRefused,
    file_name,
    head_bytes,
    read_head,
    saved_id_of,
    slot_pieces,
)
from magnitude.schedule.scope import Scope

# So much of the storage is left to others; below it `magnitude doctor` calls the storage full.
RESERVE_BYTES = 64 * 1024 * 1024
# So long a file of another version waits. An update that was taken back is tried again within days, or never.
OTHERS_KEPT_S = 14 * 86400.0
# Errors of the process, not of the file: it may be read another time.
_PASSING = frozenset({errno.ENOMEM, errno.EFAULT, errno.EMFILE, errno.ENFILE, errno.EINTR})

_log = logging.getLogger(__name__)


class SlotNotSaved(MagnitudeError):
    """A slot was not written to disk: it does not hold what it should, or the storage refuses."""

    code = "slot_not_saved"


class SlotFiles:
    """The saved conversations in `folder` (made with mode 0700). All methods block; run them in a thread.

    They may run beside each other for different slots. Whoever calls `save` or `restore` sees to it that nobody else
    writes the slot meanwhile and that `kv` stays open. `off` is empty while saving works, otherwise the reason.
    """

    def __init__(
        self,
        folder: Path,
        *,
        roots: HostRoots | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        sync: Callable[[int], None] = os.fsync,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self.folder = folder
        self.off = ""
        self._boot_id = read_boot_id(roots)
        self._clock = clock
        self._wall_clock = wall_clock
        self._sync = sync
        self._reserve_bytes = reserve_bytes
        self._lock = threading.Lock()  # guards everything below
        self._saved: dict[str, SavedSlot] = {}
        self._used_s: dict[str, float] = {}
        self._serial = 0
        self._writing: dict[str, Scope] = {}  # files being written
        self._unwanted: set[str] = set()  # of those, what was deleted meanwhile
        self._others: set[str] = set()  # names of files of another version

    def scan(self) -> list[SavedSlot]:
        """Look through the folder at start. Never raises: files that are torn, broken or links are removed with one
        line in the log each, half-written ones of a killed service as well; files of others and of other versions
        are left alone. Reads the heads only."""
        found: dict[str, SavedSlot] = {}
        try:
            with self._open_folder() as folder:
                for name in sorted(os.listdir(folder)):  # noqa: PTH208 - by descriptor, which a Path cannot
                    if name.startswith(".") and name.endswith(".tmp"):
                        _unlink(folder, name)
                    elif saved_id_of(name) is None:
                        _log.warning("%s is no file of ours and is left alone", self.folder / name)
                    elif saved := self._look_at(folder, name):
                        found[saved.saved_id] = saved
            if not os.access(self.folder, os.W_OK):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.folder))
        except OSError as error:
            self._storage_refuses(error)
        with self._lock:
            self._saved = found
            self._serial = max((saved.serial for saved in found.values()), default=0)
        return self.saved()

    def saved(self) -> list[SavedSlot]:
        """What is there, oldest file first. From memory."""
        with self._lock:
            return sorted(self._saved.values(), key=lambda saved: saved.serial)

    def idle_s(self, saved: SavedSlot) -> float:
        """How long ago `saved` was written or last restored. A file of an earlier boot is as old as this boot, at
        least: nobody knows how long the board was off."""
        now_s = self._clock()
        used_s = self._used_s.get(saved.saved_id)
        if used_s is None:
            used_s = saved.saved_at_s if same_boot(saved.boot_id, self._boot_id) else 0.0
        return max(0.0, now_s - used_s)

    def written_bytes(self, within_s: float) -> int:
        """Bytes of the files there that were written in the last `within_s` of this boot."""
        now_s = self._clock()
        return sum(
            saved.size_bytes
            for saved in self.saved()
            if same_boot(saved.boot_id, self._boot_id) and 0 <= now_s - saved.saved_at_s < within_s
        )

    def save(self, kv: KvMemory, slot: int, scope: Scope, ids: Sequence[int], conversation: str) -> SavedSlot:
        """Write the positions that `slot` holds of `ids`. The slot stays as it is.

        Raises `SlotNotSaved` when the slot's header does not say that it holds the beginning of `ids` for `scope`,
        when the slot changed meanwhile or the conversation was deleted, and when the storage refuses.
        """
        known = [int(token) for token in ids]  # an array's own numbers would overflow in the hash
        tokens = _held(kv, slot, scope, known)
        with self._lock:
            self._serial += 1
            serial = self._serial
        saved = SavedSlot(
            saved_id=secrets.token_hex(8),
            scope=scope,
            ids=tuple(known[:tokens]),
            conversation=conversation,
            size_bytes=0,
            saved_wall_s=self._wall_clock(),
            saved_at_s=self._clock(),
            boot_id=self._boot_id,
            serial=serial,
        )
        head = head_bytes(saved, kv.layout.token_bytes)
        saved = msgspec.structs.replace(saved, size_bytes=len(head) + tokens * kv.layout.token_bytes + DIGEST_BYTES)
        with self._lock:
            self._writing[saved.saved_id] = scope
        try:
            with self._open_folder() as folder:
                self._write(folder, saved, head, kv, slot)
        except OSError as error:
            self._storage_refuses(error)
            raise SlotNotSaved(
                f"the conversation in slot {slot} could not be written to {self.folder}: {error.strerror or error}",
                hint="`magnitude doctor` looks at the storage; the conversation stays in memory while there is room",
            ) from error
        finally:
            with self._lock:
                del self._writing[saved.saved_id]
                self._unwanted.discard(saved.saved_id)
        self._storage_works()
        return saved

    def restore(self, kv: KvMemory, slot: int, saved: SavedSlot) -> int:
        """Read `saved` into `slot` of a memory of the same layout and return its number of positions.

        What the slot held is lost. Its header claims the positions only when every byte of the file was right. Raises
        `SavedSlotRefused` otherwise; the slot is empty then, and the file is removed unless it was merely the wrong
        memory for it.
        """
        if saved.scope.layout_id != kv.layout.layout_id:
            raise SavedSlotRefused(
                f"{file_name(saved.saved_id)} has the KV layout {saved.scope.layout_id}, "
                f"the memory {kv.layout.layout_id}"
            )
        kv.release_slot(slot)
        try:
            with self._open_folder(make=False) as folder:
                _read_into(folder, saved, kv, slot)
        except (OSError, SavedSlotRefused) as error:
            kv.release_slot(slot)
            if not _passing(error):
                self._discard(saved.saved_id, error)
            if isinstance(error, SavedSlotRefused):
                raise
            raise SavedSlotRefused(f"{file_name(saved.saved_id)} cannot be read: {error.strerror}") from error
        with self._lock:
            self._used_s[saved.saved_id] = self._clock()
        return saved.tokens

    def delete(self, saved_id: str) -> bool:
        """Remove one saved conversation; whether there was one."""
        if saved_id_of(file_name(saved_id)) is None:
            return False
        with self._lock:
            self._used_s.pop(saved_id, None)
            known = self._saved.pop(saved_id, None)
        with contextlib.suppress(OSError), self._open_folder(make=False) as folder:
            _unlink(folder, file_name(saved_id))
        return known is not None

    def delete_all(self, owner: str | None, model: str | None = None) -> int:
        """Remove everything of `owner` (None: of everybody), of one model or of all; how many there were. What is
        being written just now will not appear."""
        with self._lock:
            gone = [key for key, saved in self._saved.items() if _concerns(saved.scope, owner, model)]
            self._unwanted |= {key for key, scope in self._writing.items() if _concerns(scope, owner, model)}
            # Whose those are is not known here, so they go with everybody's.
            others, self._others = (self._others, set()) if owner is None and model is None else (set(), self._others)
        if others:
            with contextlib.suppress(OSError), self._open_folder(make=False) as folder:
                for name in others:
                    _unlink(folder, name)
        return sum(self.delete(saved_id) for saved_id in gone)

    @contextlib.contextmanager
    def _open_folder(self, *, make: bool = True) -> Iterator[int]:
        """The folder's descriptor: all names are looked up from it, so that nobody can put another folder in its
        place meanwhile. Raises `OSError`, for a folder that is a link or somebody else's too."""
        if make:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the folder belongs to another user", str(self.folder))
            if stat.S_IMODE(status.st_mode) & 0o077:
                os.fchmod(descriptor, 0o700)
            yield descriptor
        finally:
            os.close(descriptor)

    def _look_at(self, folder: int, name: str) -> SavedSlot | None:
        try:
            with _open_file(folder, name) as file:
                return read_head(file, name, os.fstat(file.fileno()).st_size).saved
        except OtherFormat as error:
            self._wait_for_its_version(folder, name, error)
            return None
        except (OSError, SavedSlotRefused) as error:
            if not _passing(error):
                self._remove(folder, name, error)
            return None

    def _wait_for_its_version(self, folder: int, name: str, why: OtherFormat) -> None:
        written_s = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        # A stamp from before the clock was set says nothing.
        if written_s >= EARLIEST_S and self._wall_clock() - written_s > OTHERS_KEPT_S:
            self._remove(folder, name, why)
            return
        with self._lock:
            self._others.add(name)
        _log.info("the saved conversation %s waits for its version", name, extra={"fields": {"why": why.message}})

    def _make_room(self, folder: int, size_bytes: int) -> None:
        """Raises `OSError` when there is no room for so much, also without the files of other versions."""
        with self._lock:
            others = sorted(self._others)
        while True:
            space = os.fstatvfs(folder)
            if space.f_bavail * space.f_frsize >= size_bytes + self._reserve_bytes:
                return
            if not others:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            name = others.pop()
            _unlink(folder, name)
            with self._lock:
                self._others.discard(name)

    def _write(self, folder: int, saved: SavedSlot, head: bytes, kv: KvMemory, slot: int) -> None:
        self._make_room(folder, saved.size_bytes)
        name, temporary = file_name(saved.saved_id), f".{saved.saved_id}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            try:
                _write_slot(descriptor, head, kv, slot, saved.tokens)
                self._sync(descriptor)
            finally:
                os.close(descriptor)
            if _held(kv, slot, saved.scope, saved.ids) != saved.tokens:
                raise SlotNotSaved(f"slot {slot} was used again while it was written to disk")
            with self._lock:
                if saved.saved_id in self._unwanted:
                    raise SlotNotSaved(f"the conversation in slot {slot} was deleted while it was written to disk")
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                self._saved[saved.saved_id] = saved
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        _sync_folder(folder)

    def _discard(self, saved_id: str, why: Exception) -> None:
        with self._lock:
            self._saved.pop(saved_id, None)
            self._used_s.pop(saved_id, None)
        with contextlib.suppress(OSError), self._open_folder(make=False) as folder:
            self._remove(folder, file_name(saved_id), why)

    def _remove(self, folder: int, name: str, why: Exception) -> None:
        try:
            _unlink(folder, name)
            kept = False
        except OSError:
            kept = True
        reason = why.message if isinstance(why, MagnitudeError) else getattr(why, "strerror", None) or str(why)
        what = "is ignored and cannot be removed" if kept else "was removed"
        _log.warning("the saved conversation %s %s", name, what, extra={"fields": {"why": reason}})

    def _storage_refuses(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if not self.off:
            _log.warning("conversations are not saved to %s any more", self.folder, extra={"fields": {"why": reason}})
        self.off = f"conversations are not saved to {self.folder}: {reason}"

    def _storage_works(self) -> None:
        if self.off:
            _log.info("conversations are saved to %s again", self.folder)
        self.off = ""


def _passing(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _PASSING


def _concerns(scope: Scope, owner: str | None, model: str | None) -> bool:
    return owner in (None, scope.owner) and model in (None, scope.model)


def _held(kv: KvMemory, slot: int, scope: Scope, ids: Sequence[int]) -> int:
    """How many positions `slot` holds of `ids`, by its header. Raises `SlotNotSaved` for none."""
    tokens = kv.held_tokens(slot, scope.model_hash, list(ids)) if scope.layout_id == kv.layout.layout_id else 0
    if not tokens:
        raise SlotNotSaved(f"slot {slot} does not hold the conversation that should be saved")
    return tokens


def _write_slot(descriptor: int, head: bytes, kv: KvMemory, slot: int, tokens: int) -> None:
    digest = hashlib.sha256(head)
    _write_all(descriptor, memoryview(head))
    # A mapping of its own: it stays valid in this thread whatever happens to the memory's owner.
    with mmap.mmap(kv.fd, kv.layout.total_bytes, access=mmap.ACCESS_READ) as mapping, memoryview(mapping) as memory:
        for piece in slot_pieces(memory, kv.layout, slot, tokens):
            with piece:
                digest.update(piece)
                _write_all(descriptor, piece)
    _write_all(descriptor, memoryview(digest.digest()))


def _write_all(descriptor: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        with data[done:] as rest:
            done += os.write(descriptor, rest)


def _read_into(folder: int, saved: SavedSlot, kv: KvMemory, slot: int) -> None:
    """Raises `OSError` or `SavedSlotRefused` and leaves the slot without a header then."""
    name, layout = file_name(saved.saved_id), kv.layout
    with _open_file(folder, name) as file:
        head: Head = read_head(file, name, os.fstat(file.fileno()).st_size)
        if head.saved != saved:
            raise SavedSlotRefused(f"{name} is not the conversation that is on record under this name")
        if head.token_bytes != layout.token_bytes:
            raise SavedSlotRefused(f"{name} is broken: its size does not fit its KV layout")
        digest = hashlib.sha256(head.raw)
        at = len(head.raw)
        with mmap.mmap(kv.fd, layout.total_bytes) as mapping:
            with memoryview(mapping) as memory:
                for piece in slot_pieces(memory, layout, slot, saved.tokens):
                    with piece:
                        _read_all(file.fileno(), piece, at, name)
                        at += len(piece)
                        digest.update(piece)
            if os.pread(file.fileno(), DIGEST_BYTES, at) != digest.digest():
                raise SavedSlotRefused(f"{name} is broken: its checksum does not match")
            state = SlotState(mapping, layout.header_offset(slot), saved.scope.model_hash, layout.layout_id)
            state.begin(list(saved.ids))


def _read_all(descriptor: int, target: memoryview, at: int, name: str) -> None:
    done = 0
    while done < len(target):
        with target[done:] as rest:
            count = os.preadv(descriptor, [rest], at + done)
        if not count:
            raise SavedSlotRefused(f"{name} is torn: it ends too early")
        done += count


def _open_file(folder: int, name: str) -> BinaryIO:
    """Open a regular file of ours for reading. Raises `SavedSlotRefused` for a link and everything else.

    Not blocking: a FIFO of that name must not hold up the start.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SavedSlotRefused(f"{name} is a symbolic link") from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise SavedSlotRefused(f"{name} is no regular file of this user")
    return os.fdopen(descriptor, "rb")


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
        _sync_folder(folder)


def _sync_folder(folder: int) -> None:
    with contextlib.suppress(OSError):  # some network and FUSE file systems answer EINVAL
        os.fsync(folder)
