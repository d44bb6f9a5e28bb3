"""What was learned, on disk: one folder for each board and model, below `STATE/strategies/BOARD/MODEL-HASH/`.

`learned.json` is what counts, with the generation before it (`.bak`). Each run of the service that learned something,
each import and each reset begins a new numbered generation, and the one before stays as `generation-7.json`: a few
of them, and few bytes. The same content again begins none. What was learned with another runtime or another CPU is
kept as `retired-7.json`, and comes back with it. `pin.json` is what a person has fixed.
`STATE/strategies/trained.json` was trained off the device, for many boards. All of it is checked when read and
written whole or not at all (`persist`), so that a power cut costs at most the last save. Nothing here raises for the
storage's sake.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from magnitude.persist import MAX_STATE_BYTES, OtherSchema, StateFile, Unusable, sealed, unsealed, write_atomic
from magnitude.policy.drift import HASH_DIGITS, changes, gives_prior, holds, weakened
from magnitude.policy.learned import SCHEMA, Binding, Learned
from magnitude.policy.pinned import Pinned
from magnitude.policy.trained import SCHEMA as TRAINED_SCHEMA
from magnitude.policy.trained import Trained

T = TypeVar("T")

log = logging.getLogger("magnitude.policy")

FOLDER = "strategies"
CURRENT = "learned.json"
PIN = "pin.json"
TRAINED = "trained.json"
PIN_SCHEMA = 1
# A week of nightly restarts, so that one of them can be looked at and brought back.
GENERATIONS_KEPT = 7
# The runtime before, and the one before that: who goes back two upgrades starts anew.
RETIRED_KEPT = 2
# A table of a few hundred situations is below 100 kB. What is larger loses the situations that are known least.
MOST_DUMP_BYTES = 512 * 1024
# All numbered generations and retired files of one model together.
MOST_KEPT_BYTES = 2 * 1024 * 1024
# More than a card has room for models; the bound is for a folder that is imported anew each night.
MOST_MODELS = 64
# Whoever holds the lock writes a small file. Longer than a worn card takes, and a stopped process must not hold up
# a service for good.
LOCK_TRIES, LOCK_PAUSE_S = 100, 0.05


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `retired`: why it does not count any more; "" while it does."""

    generation: int
    learned: Learned
    retired: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What there is for a binding: what was `learned` with it, else what another one learned, as a weak `prior`
    where that is safe. `why`: what happened to earlier figures, "" when nothing did."""

    learned: Learned | None = None
    prior: Learned | None = None
    why: str = ""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One model's folder, as `magnitude strategy show` needs it. `dump` None: nothing that can be read."""

    folder: str
    dump: Dump | None
    pinned: Pinned | None
    generations: tuple[int, ...]  # numbers of those that can be read, the oldest first
    retired: tuple[Dump, ...] = ()  # the oldest first


class Dumps:
    """The files of one service. Every method blocks on storage; threads and processes may call at once."""

    def __init__(self, state_folder: Path, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.folder = state_folder / FOLDER
        self.off = ""  # why nothing is kept; empty while it is
        self._wall_clock = wall_clock
        self._lock = threading.RLock()
        self._seen: dict[Path, int] = {}  # the generation that this process has read or written
        self._begun: set[Path] = set()  # folders in which it has begun one of its own

    def folder_of(self, binding: Binding) -> Path:
        """Where that model's files lie; it need not exist."""
        return self.folder / _file_name(binding.board) / _file_name(binding.model_hash)

    def load(self, binding: Binding) -> Found:
        """What is known under that binding. What belongs to another one is retired, and said so in the log."""
        folder = self.folder_of(binding)
        with self._alone():
            current = self._current(folder)
            if current is None or current.generation != self._seen.get(folder):
                self._begun.discard(folder)  # another's: what this run learns is a generation of its own
            self._seen[folder] = current.generation if current else 0
            if current is not None and holds(current.learned.binding, binding):
                return Found(learned=_named(current.learned, binding))
            if current is not None:
                self._retire(folder, current, binding)
            if (own := self._earlier(folder, binding)) is not None:
                now = f"{', '.join(changes(current.learned.binding, binding))}: " if current is not None else ""
                why = f"{now}generation {own.generation}, learned with the same as now, is used again"
                log.info("earlier strategies are used again", extra={"fields": {"model": binding.model, "why": why}})
                self._seen[folder] = max(self._seen[folder], own.generation)
                return Found(learned=_named(own.learned, binding), why=why)
            trained = self.trained()
            if trained is not None and (table := trained.learned_for(binding)) is not None:
                now = ", ".join(changes(current.learned.binding, binding)) if current is not None else ""
                why = f"the trained table {trained.trained_id[:HASH_DIGITS]} is used"
                return Found(learned=table, why=f"{now}: {why}" if now else why)
            return self._from_others(folder, binding, current)

    def save(self, learned: Learned) -> bool:
        """Keep it. False: the storage refuses (`off` says why), or somebody else has changed what is kept since it
        was loaded (`overtaken`), which must not be lost."""
        folder = self.folder_of(learned.binding)
        with self._alone():
            current = self._peek(folder / CURRENT)
            if current is not None and not holds(current.learned.binding, learned.binding):
                self._retire(folder, current, learned.binding)
                current = None
            if current is not None and current.generation > self._seen.get(folder, current.generation):
                log.warning(
                    "strategies are not saved: they were changed by another since",
                    extra={"fields": {"model": learned.binding.model, "folder": str(folder)}},
                )
                return False
            if current is not None and (folder in self._begun or _alike(current.learned, learned)):
                return self._write(folder, learned, current.generation)
            return self._begin(folder, learned, current)

    def overtaken(self, binding: Binding) -> bool:
        """Whether another process has imported, reset or saved since this one loaded or saved: load again."""
        folder = self.folder_of(binding)
        current = self._peek(folder / CURRENT)
        return current is not None and current.generation > self._seen.get(folder, current.generation)

    def replace(self, learned: Learned) -> bool:
        """Let `learned` count from now on, whatever there was, which stays as a numbered generation."""
        folder = self.folder_of(learned.binding)
        with self._alone():
            current = self._peek(folder / CURRENT)
            if current is not None and _alike(current.learned, learned):
                return self._write(folder, learned, current.generation)
            return self._begin(folder, learned, current)

    def reset(self, binding: Binding) -> bool:
        """Begin anew; what there was stays as a numbered generation."""
        return self.replace(Learned(binding=binding))

    def trained(self) -> Trained | None:
        """The trained table and tree that are installed."""
        return _read(self.folder / TRAINED, Trained, TRAINED_SCHEMA)

    def install(self, trained: Trained | None) -> bool:
        """Use that table where nothing was measured, and its tree; None: no more. False when the storage refuses."""
        with self._alone():
            try:
                if trained is None:
                    (self.folder / TRAINED).unlink(missing_ok=True)
                else:
                    self._make(self.folder)
                    write_atomic(self.folder / TRAINED, sealed(trained, schema=TRAINED_SCHEMA))
            except OSError as error:
                return self._refused(self.folder, error)
        return True

    def generation(self, folder: Path, number: int) -> Dump | None:
        """The numbered one, or what counts now where that is its number."""
        current = self._peek(folder / CURRENT)
        if current is not None and current.generation == number:
            return current
        return self._peek(folder / f"generation-{number}.json")

    def pinned(self, binding: Binding) -> Pinned | None:
        """What a person has fixed for that model on that board, for whichever weights and runtime."""
        here = self._pin_of(self.folder_of(binding))
        others = [pin for folder in self._siblings(binding) if (pin := self._pin_of(folder)) is not None]
        fitting = [pin for pin in others if pin.board == binding.board and pin.model == binding.model]
        return here or max(fitting, key=lambda pin: pin.pinned_at_s, default=None)

    def pin(self, binding: Binding, pinned: Pinned | None) -> bool:
        """Fix it, or with None leave everything to the loop again. False when the storage refuses."""
        folder = self.folder_of(binding)
        with self._alone():
            try:
                for other in [*self._siblings(binding), folder]:
                    earlier = self._pin_of(other)
                    if other == folder or (earlier is not None and earlier.model == binding.model):
                        (other / PIN).unlink(missing_ok=True)
                if pinned is not None:
                    self._make(folder)
                    stamped = msgspec.structs.replace(pinned, pinned_at_s=self._wall_clock())
                    write_atomic(folder / PIN, sealed(stamped, schema=PIN_SCHEMA))
            except OSError as error:
                return self._refused(folder, error)
        return True

    def all(self) -> list[Kept]:
        """Everything that is kept, by board and folder."""
        found = []
        for folder in sorted(_folders(self.folder), key=str):
            for model in sorted(_folders(folder), key=str):
                found.append(self.kept(model))
        return [kept for kept in found if kept.dump or kept.pinned or kept.generations or kept.retired]

    def kept(self, folder: Path) -> Kept:
        """What one model's folder holds, without changing anything."""
        retired = [dump for _, file in _numbered(folder, "retired") if (dump := self._peek(file)) is not None]
        numbers = [number for number, file in _numbered(folder, "generation") if self._peek(file) is not None]
        dump = self._peek(folder / CURRENT) or self._peek(folder / f"{CURRENT}.bak")
        return Kept(
            folder=str(folder),
            dump=dump,
            pinned=self._pin_of(folder),
            generations=tuple(numbers),
            retired=tuple(retired),
        )

    # --- reading ---

    def _current(self, folder: Path) -> Dump | None:
        """What counts; a broken file is set aside, and its previous generation counts."""
        if not folder.is_dir():
            return None
        file = StateFile(folder / CURRENT, Dump, schema=SCHEMA)
        dump = file.load(lambda: Dump(generation=0, learned=Learned(binding=_NO_BINDING)))
        return None if file.source == "default" else dump

    def _earlier(self, folder: Path, binding: Binding) -> Dump | None:
        """The newest kept file of that very binding."""
        files = [file for kind in ("generation", "retired") for _, file in _numbered(folder, kind)]
        dumps = [dump for file in files if (dump := self._peek(file)) is not None]
        fitting = [dump for dump in dumps if holds(dump.learned.binding, binding)]
        return max(fitting, key=lambda dump: dump.generation, default=None)

    def _from_others(self, folder: Path, binding: Binding, current: Dump | None) -> Found:
        """What others learned of the model; the newest that is safe."""
        dumps = [current, *(self._peek(file) for _, file in _numbered(folder, "retired"))]
        for other in self._siblings(binding):
            dump = self._peek(other / CURRENT)
            if dump is not None and dump.learned.binding.model == binding.model:
                dumps.append(dump)
        known = [dump for dump in dumps if dump is not None and dump.learned.entries]
        if not known:
            return Found(why=_why(current, binding, "nothing is taken from it") if current else "")
        newest_first = sorted(known, key=lambda dump: dump.learned.saved_at_s, reverse=True)
        safe = [dump for dump in newest_first if gives_prior(dump.learned.binding, binding)]
        if not safe:
            return Found(why=_why(newest_first[0], binding, "nothing is taken from it"))
        return Found(
            prior=weakened(safe[0].learned, binding),
            why=_why(safe[0], binding, "its choices are a hint until they are measured anew"),
        )

    def _siblings(self, binding: Binding) -> list[Path]:
        """Folders of other weights on the same board."""
        own = self.folder_of(binding)
        return [folder for folder in _folders(own.parent) if folder != own]

    def _peek(self, file: Path) -> Dump | None:
        """A dump's content; None when there is none that can be read. Changes nothing."""
        return _read(file, Dump, SCHEMA)

    def _pin_of(self, folder: Path) -> Pinned | None:
        return _read(folder / PIN, Pinned, PIN_SCHEMA)

    # --- writing ---

    def _begin(self, folder: Path, learned: Learned, current: Dump | None) -> bool:
        """A new generation; `current` becomes a numbered one."""
        try:
            self._make(folder)
            numbers = [number for kind in ("generation", "retired") for number, _ in _numbered(folder, kind)]
            newest = max([*numbers, self._seen.get(folder, 0), current.generation if current else 0])
            if current is not None and current.learned.entries:
                write_atomic(folder / f"generation-{current.generation}.json", sealed(current, schema=SCHEMA))
            if not self._write(folder, learned, newest + 1):
                return False
            self._begun.add(folder)
            _prune(folder)
        except OSError as error:
            return self._refused(folder, error)
        return True

    def _write(self, folder: Path, learned: Learned, generation: int) -> bool:
        stamped = msgspec.structs.replace(learned, saved_at_s=self._wall_clock())
        file = StateFile(folder / CURRENT, Dump, schema=SCHEMA)
        if not file.save(Dump(generation=generation, learned=bounded(stamped))):
            self.off = file.off
            return False
        self.off = ""
        self._seen[folder] = generation
        return True

    def _retire(self, folder: Path, current: Dump, now: Binding) -> None:
        """Keep `current` apart. A power cut between the two steps leaves both files: it is done again then."""
        why = ", ".join(changes(current.learned.binding, now))
        fields = {"model": now.model, "generation": current.generation, "why": why}
        try:
            retired = msgspec.structs.replace(current, retired=why)
            write_atomic(folder / f"retired-{current.generation}.json", sealed(retired, schema=SCHEMA))
            for name in (CURRENT, f"{CURRENT}.bak"):
                (folder / name).unlink(missing_ok=True)
            _prune(folder)
        except OSError as error:
            self._refused(folder, error)
        log.info("strategies are retired: they were learned with something else", extra={"fields": fields})

    def _make(self, folder: Path) -> None:
        """Make the folder, owned by whoever owns the state: a verb of root's must not lock the service out."""
        if folder.is_dir():
            return
        owner = self.folder.parent.stat()
        for level in (self.folder, folder.parent, folder):
            if not level.is_dir():
                level.mkdir(parents=True, exist_ok=True)
                if os.geteuid() == 0 and owner.st_uid != 0:
                    os.chown(level, owner.st_uid, owner.st_gid)
        if folder.parent.parent != self.folder:
            return
        others = [other for other in _folders(folder.parent) if other != folder and not (other / PIN).exists()]
        for old in sorted(others, key=_changed_s, reverse=True)[MOST_MODELS - 1 :]:
            shutil.rmtree(old, ignore_errors=True)

    def _refused(self, folder: Path, error: OSError) -> bool:
        """Storage that refuses turns keeping off, with one line, and is no error: False."""
        if not self.off:
            log.warning("strategies are not kept", extra={"fields": {"folder": str(folder), "error": str(error)}})
        self.off = f"{folder} cannot be written: {error.strerror or error}"
        return False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time, over processes too. On storage that has no room for a lock, over threads only."""
        with self._lock, contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                descriptor = os.open(self.folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                for _ in range(LOCK_TRIES):
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        time.sleep(LOCK_PAUSE_S)
            yield


def bounded(learned: Learned, most_bytes: int = MOST_DUMP_BYTES) -> Learned:
    """`learned`, without the situations that are known least where it is larger than that as JSON."""
    while len(msgspec.json.encode(learned)) > most_bytes and learned.entries:
        best_first = sorted(
            range(len(learned.entries)),
            key=lambda index: -sum(each.weight for each in learned.entries[index].evidence),
        )
        keep = set(best_first[: len(best_first) * 3 // 4])
        entries = tuple(entry for index, entry in enumerate(learned.entries) if index in keep)
        learned = msgspec.structs.replace(learned, entries=entries)
    return learned


_NO_BINDING = Binding(board="", model="", model_hash="", ort_version="")


def _alike(one: Learned, other: Learned) -> bool:
    """But for when they were saved."""
    return msgspec.structs.replace(one, saved_at_s=other.saved_at_s) == other


def _named(learned: Learned, binding: Binding) -> Learned:
    return msgspec.structs.replace(learned, binding=binding)


def _why(dump: Dump, binding: Binding, then: str) -> str:
    return f"{', '.join(changes(dump.learned.binding, binding))}: what was learned is retired, {then}"


def _file_name(text: str) -> str:
    """`text` where it can be a folder's name, else as much of it as can be and a hash of the whole."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", text):
        return text
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:40].strip("-")
    return f"{safe or 'unnamed'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _folders(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


def _numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """Files `KIND-7.json` with their numbers, the oldest first."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed
    except OSError:
        return []
    found = [(re.fullmatch(rf"{kind}-(\d{{1,9}})\.json", name), name) for name in names]
    return sorted((int(match[1]), folder / name) for match, name in found if match)


def _prune(folder: Path) -> None:
    """Let the oldest go: of each kind by number, of all by size."""
    for kind, most in (("generation", GENERATIONS_KEPT), ("retired", RETIRED_KEPT)):
        for _, file in _numbered(folder, kind)[:-most]:
            file.unlink(missing_ok=True)
    kept = sorted(_numbered(folder, "generation") + _numbered(folder, "retired"))
    total = sum(file.stat().st_size for _, file in kept)
    for _, file in kept:
        if total <= MOST_KEPT_BYTES:
            break
        total -= file.stat().st_size
        file.unlink(missing_ok=True)


def _changed_s(folder: Path) -> float:
    try:
        return (folder / CURRENT).stat().st_mtime
    except OSError:
        return 0.0


def _read(file: Path, type_: type[T], schema: int) -> T | None:
    try:
        with file.open("rb") as opened:
            return unsealed(opened.read(MAX_STATE_BYTES), type_, schema=schema)
    except (OSError, Unusable, OtherSchema):
        return None
