"""A way to load a model's graph."""

from __future__ import annotations

from functools import cached_property

import msgspec

from magnitude.board.cpu import cpu_list


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A way to load a model's graph: an ONNX Runtime session over the same mapped weights.

    `graph_file` is one of the model's own graphs (a fusion plan; "": the one that it is loaded with), `threads` the
    width of the pool, `cpus` where its threads may run (empty: anywhere), `arena` whether memory of runs is kept.
    """

    graph_file: str = ""
    threads: int
    cpus: tuple[int, ...] = ()
    arena: bool = False

    @cached_property
    def session_id(self) -> str:
        """As logs and reports name it: "2 threads", "serving.onnx, 4 threads on 4-7"."""
        parts = [f"{self.threads} thread{'' if self.threads == 1 else 's'}"]
        if self.graph_file:
            parts.insert(0, f"{self.graph_file},")
        if self.cpus:
            parts.append(f"on {cpu_list(self.cpus)}")
        if self.arena:
            parts.append("with arena")
        return " ".join(parts)
