"""Making a model's sessions: its own one, a further session, a twin for a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magnitude.engine.packed_weights import PackedWeights, graph_path
from magnitude.engine.process import forget_mapped_pages, trim_heap
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import kernels_for, open_session
from magnitude.engine.thread_place import ThreadPlace
from magnitude.models.description import ModelDescription


class SessionMaker:
    """`packed` is where packed weights are kept (None: nowhere, each session has its own)."""

    def __init__(self, place: ThreadPlace, packed: PackedWeights | None = None) -> None:
        self._place = place
        self._packed = packed

    def open_own(self, model: ModelDescription, threads: int) -> Any:
        """The session that a model is loaded with. A kernel plan's has mapped weights where that is possible: it can
        be the only one, and then nothing has weights of its own. What ONNX Runtime packs stays in the memory of this
        session, which depends on no cache.

        Raises what `sessions.open_session` raises.
        """
        if self._packed is not None and kernels_for(model.graph_file) is not None:
            return self._packed.open(model, SessionSpec(threads=threads))
        return open_session(Path(model.folder) / model.graph_file, threads)

    def open(self, model: ModelDescription, spec: SessionSpec, *, profile: str = "") -> Any:
        """A session of the model's graph as `spec` says; `profile`: see `sessions.session_options`.

        Raises `RequestError` for CPUs that cannot be used, and what `sessions.open_session` raises.
        """
        # The pool's threads inherit the CPUs of the thread that makes them.
        self._place.settle(spec.cpus)
        try:
            if self._packed is not None:
                session = self._packed.open(model, spec, profile=profile)
            else:
                session = open_session(graph_path(model, spec), spec.threads, arena=spec.arena, profile=profile)
        finally:
            self._place.leave()
        trim_heap()
        forget_mapped_pages(Path(model.folder))
        return session
