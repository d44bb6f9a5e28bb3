"""Weights as the kernels want them, kept in a file that all further sessions map, and the own one of a kernel plan.

ONNX Runtime packs most weights of a graph when it makes a session, into memory of that session alone: SmolLM2-135M
takes 144 MB for each. It can write a graph together with its packed weights, and a session of that file has them
mapped: 16 MB of its own, the rest is page cache that all such sessions share. Of a kernel plan the same is done by
`packed_products.py`.

What is written holds for this model, ONNX Runtime and CPU only, and is a cache in every respect: whatever is wrong
with it, it is dropped and the model's own files are opened. It is used only after it has given the results of the
model's own files, to the bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime

from magnitude.engine import packed_products
from magnitude.engine.process import is_alive, trim_heap
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import PROVIDERS, kernels_for, open_session, session_options
from magnitude.engine.stats import read_cpu_features
from magnitude.kernels.library import KernelLibrary
from magnitude.models.description import WEIGHTS_FILE, ModelDescription
from magnitude.persist import Unusable, sealed, sync_folder, unsealed, write_atomic

log = logging.getLogger(__name__)

GRAPH, WEIGHTS, ENTRY = "model.onnx", "weights.bin", "entry.json"
_SCHEMA = 1
# How entries are written; a change makes all of them anew.
_LAYOUT = 1
# Smaller initialisers stay in the graph: mapping pays by the page.
_LEAST_EXTERNAL_BYTES = 1024
# Smaller files of a model's folder hold no weights, or they are in the graph.
_WEIGHT_FILE_BYTES = 64 * 1024
# What is written has at most the weights and all of them packed: 2.2 times the weights for SmolLM2-135M (4 bits), 1.4
# times for MiniLM.
_GROWTH = 3
# Of the disk: what all entries may take, and what is left free besides.
_MOST_SHARE = 0.1
_LEAST_FREE_SHARE = 0.1
# An engine that dies while it opens an entry may have died of something else. After the second one in a row the
# entry is left alone.
_MOST_DEATHS = 1

# Whether the second of two sessions of a model's graph computes what the first does.
Check = Callable[[ModelDescription, Any, Any], bool]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry's files are, so that a changed one is seen: sha256 and size by name."""

    model: str
    files: dict[str, tuple[str, int]]


class PackedWeights:
    """The entries in `root`, which is made when it is needed. `check` has the last word on each new one."""

    def __init__(self, root: Path, check: Check, cpu_features: tuple[str, ...] | None = None) -> None:
        self._root = root
        self._check = check
        self._cpu_features = read_cpu_features() if cpu_features is None else cpu_features
        # Of this process's threads: one makes further sessions, another loads models.
        self._at_work = threading.Lock()

    def open(self, model: ModelDescription, spec: SessionSpec, *, profile: str = "") -> Any:
        """A session of the model's graph as `spec` says, with mapped weights where that is possible. One with a
        `profile` (`sessions.session_options`) uses what is there and adds nothing.

        Raises what `open_session` raises for the model's own files, and nothing else.
        """
        path = graph_path(model, spec)
        if model.kind != "tensors":  # of unknown inputs: nothing could be checked
            try:
                with self._at_work:
                    session = self._mapped(model, path, spec, profile)
                if session is not None:
                    return session
            except Exception as error:
                log.info("packed weights of %s are not used: %s", model.name, str(error).strip()[:300])
        return open_session(path, spec.threads, arena=spec.arena, profile=profile)

    def _mapped(self, model: ModelDescription, path: Path, spec: SessionSpec, profile: str) -> Any:
        key = self.key_of(model, path)
        self._root.mkdir(mode=0o750, parents=True, exist_ok=True)
        entry = self._root / key
        if (self._root / f"{key}.unusable").exists():
            return None
        deaths = len(self._deaths(key))
        if deaths and entry.exists():
            shutil.rmtree(entry)
        if deaths > _MOST_DEATHS:
            self._give_up(key, "engines died while they opened it")
            return None
        if entry.exists():
            try:
                _verify(entry)
                with self._trying(key):
                    session = _form_of(path).open(entry, spec, profile)
                os.utime(entry)
            except Exception:
                shutil.rmtree(entry)
                raise
        elif profile:
            return None
        else:
            session = self._create(model, path, spec, key)
        for old in self._deaths(key):
            old.unlink(missing_ok=True)
        return session

    def key_of(self, model: ModelDescription, path: Path) -> str:
        """Everything that what is written depends on."""
        with path.open("rb") as file:
            graph = hashlib.file_digest(file, "sha256").hexdigest()
        # The hash of a folder that was not imported is of parts of its weights only.
        states = [(file.name, file.stat()) for file in sorted(path.parent.iterdir())]
        weights = [(name, at.st_size, at.st_mtime_ns) for name, at in states if at.st_size >= _WEIGHT_FILE_BYTES]
        runtime = (_LAYOUT, onnxruntime.__version__, platform.machine(), self._cpu_features)
        parts = (*runtime, *_form_of(path).made_by(), model.model_hash, graph, weights)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _create(self, model: ModelDescription, path: Path, spec: SessionSpec, key: str) -> Any:
        self._remove_unfinished()
        if not self._has_room(_GROWTH * model.weight_bytes):
            log.info("no room for the packed weights of %s in %s", model.name, self._root)
            return None
        new = Path(tempfile.mkdtemp(prefix=f".new-{os.getpid()}-", dir=self._root))
        try:
            form = _form_of(path)
            with self._trying(key):
                plain = form.save(new, spec)
            files = {name: _seen(new / name) for name in form.files}
            write_atomic(new / ENTRY, sealed(Entry(model=model.name, files=files), schema=_SCHEMA))
            with self._trying(key):
                session = form.open(new, spec)
                same = self._check(model, plain, session)
            if not same:
                log.warning("packed weights of %s compute something else and are left alone", model.name)
                self._give_up(key, "its results differ")
                return plain
            # Mapped files stay what they are under another name.
            with contextlib.suppress(OSError):  # another engine was faster
                new.rename(self._root / key)
                sync_folder(self._root)
            del plain
            trim_heap()
            return session
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _give_up(self, key: str, why: str) -> None:
        write_atomic(self._root / f"{key}.unusable", f"{why}\n".encode())

    @contextlib.contextmanager
    def _trying(self, key: str) -> Iterator[None]:
        """While this is open, the death of this process is held against the entry. That is for a second or two, and
        not while files go to the disk: an engine may be killed for many reasons."""
        mark = self._root / f"{key}.trying-{os.getpid()}"
        mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def _deaths(self, key: str) -> list[Path]:
        """Marks of engines that are no more."""
        return [mark for mark in self._root.glob(f"{key}.trying-*") if not is_alive(mark.name.rpartition("-")[2])]

    def _remove_unfinished(self) -> None:
        """What engines left behind that died or were killed while they wrote."""
        for folder in self._root.glob(".new-*"):
            pid = folder.name.split("-")[1]
            if pid == str(os.getpid()) or not is_alive(pid):  # one thread at a time does this
                shutil.rmtree(folder, ignore_errors=True)

    def _has_room(self, new_bytes: int) -> bool:
        """Whether so much can be added; entries that were not used for the longest time make room."""
        entries = [folder for folder in self._root.iterdir() if folder.is_dir()]
        entries.sort(key=lambda folder: folder.stat().st_mtime)
        while True:
            disk = shutil.disk_usage(self._root)
            taken = sum(file.stat().st_size for folder in entries for file in folder.iterdir())
            fits = taken + new_bytes <= _MOST_SHARE * disk.total
            if fits and disk.free - new_bytes >= _LEAST_FREE_SHARE * disk.total:
                return True
            if not entries:
                return False
            shutil.rmtree(entries.pop(0), ignore_errors=True)


def graph_path(model: ModelDescription, spec: SessionSpec) -> Path:
    """The file of the graph that `spec` names."""
    return Path(model.folder) / (spec.graph_file or model.graph_file)


def _seen(path: Path) -> tuple[str, int]:
    """The file's sha256 and size, and it is on the disk by then."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, os.fstat(file.fileno()).st_size


def _verify(entry: Path) -> None:
    """Raise `Unusable` unless the entry's files are those that were written. A file that is too short would end the
    process when it is read where it is mapped."""
    known = unsealed((entry / ENTRY).read_bytes(), Entry, schema=_SCHEMA)
    for name, seen in known.files.items():
        if _seen(entry / name) != seen:
            raise Unusable(f"{name} has changed since it was written")


class _OptimisedGraph:
    """What ONNX Runtime makes of the graph at `path`, and its weights."""

    files = (GRAPH, WEIGHTS)

    def __init__(self, path: Path) -> None:
        self._path = path

    def made_by(self) -> tuple[str, ...]:
        """What its files depend on beside runtime, processor and model."""
        return ()

    def save(self, folder: Path, spec: SessionSpec) -> Any:
        """A session of the graph, which leaves itself and its packed weights in `folder`."""
        options = session_options(spec.threads, arena=spec.arena)
        options.optimized_model_filepath = str(folder / GRAPH)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_LEAST_EXTERNAL_BYTES)
        )
        options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
        return onnxruntime.InferenceSession(str(self._path), options, providers=list(PROVIDERS))

    def open(self, folder: Path, spec: SessionSpec, profile: str = "") -> Any:
        options = session_options(spec.threads, arena=spec.arena, profile=profile)
        # It was optimised before it was written, and weights are found by the names that they had then.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(str(folder / GRAPH), options, providers=list(PROVIDERS))


class _KernelPlan:
    """The packed weights alone: the graph stays where it is."""

    files = (packed_products.WEIGHTS, packed_products.PLACES)

    def __init__(self, path: Path, library: KernelLibrary) -> None:
        self._path = path
        self._library = library

    def made_by(self) -> tuple[str, ...]:
        return (self._library.sha256,)

    def save(self, folder: Path, spec: SessionSpec) -> Any:
        plain = open_session(self._path, spec.threads, arena=spec.arena)
        packed_products.write_packed(plain, self._path.with_name(WEIGHTS_FILE), folder, self._library)
        return plain

    def open(self, folder: Path, spec: SessionSpec, profile: str = "") -> Any:
        return packed_products.open_packed(self._path, folder, spec, self._library, profile)


def _form_of(path: Path) -> _OptimisedGraph | _KernelPlan:
    """In which form the weights of the graph at `path` are kept. Raises what `kernels_for` raises."""
    library = kernels_for(path)
    return _OptimisedGraph(path) if library is None else _KernelPlan(path, library)
