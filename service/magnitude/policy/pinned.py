"""What a person has fixed of a model's strategy. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from magnitude.board.cpu import cpu_list
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.policy.situation import Part


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that are fixed; the loop decides the others. `prefill` is for prompts, texts and tensors alike. None and
    a `chunk` of 0: not fixed; `variant` "": the model's own weights are."""

    board: str
    model: str
    decode: SessionSpec | None = None
    prefill: SessionSpec | None = None
    chunk: int = 0
    variant: str | None = None
    pinned_at_s: float = 0.0  # wall clock, for people only

    @property
    def empty(self) -> bool:
        return self.decode is None and self.prefill is None and not self.chunk and self.variant is None

    @property
    def in_words(self) -> str:
        """One line for logs and people."""
        parts = []
        if self.decode is not None:
            parts.append(f"answers by {self.decode.session_id}")
        if self.prefill is not None:
            parts.append(f"prompts by {self.prefill.session_id}")
        if self.chunk:
            parts.append(f"prompts in pieces of {self.chunk}")
        if self.variant is not None:
            parts.append(f"weights of {self.variant}" if self.variant else "the model's own weights")
        return ", ".join(parts) or "nothing"


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to run a model by: CPUs by number of which `usable` may be used at once (quota), further graphs
    of its, variants, and whether it decodes at all."""

    cpus: tuple[int, ...]
    usable: int
    graphs: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    decodes: bool = True

    @property
    def in_words(self) -> str:
        """For hints."""
        parts = [f"up to {self.usable} thread{'' if self.usable == 1 else 's'} on CPU {cpu_list(self.cpus)}"]
        if self.graphs:
            parts.append(f"graphs {', '.join(self.graphs)}")
        parts.append(f"variants {', '.join(self.variants)}" if self.variants else "no variants")
        if not self.decodes:
            parts.append("without answers and pieces of prompts")
        return "; ".join(parts)


def possible(pinned: Pinned, means: Means) -> tuple[Pinned, tuple[str, ...]]:
    """What can be kept of it, and in words what cannot: a pin outlives the weights, the runtime and the CPUs that it
    was made for."""
    lost: list[str] = []
    decode, chunk, variant = pinned.decode, pinned.chunk, pinned.variant
    if not means.decodes and (decode is not None or chunk):
        lost.append("answers and pieces of prompts: the model does not decode")
        decode, chunk = None, 0
    if variant and variant not in means.variants:
        lost.append(f"weights of {variant}: there is no such variant")
        variant = None
    decode = _possible(decode, "answers", means, lost)
    prefill = _possible(pinned.prefill, "prompts", means, lost)
    return msgspec.structs.replace(pinned, decode=decode, prefill=prefill, chunk=chunk, variant=variant), tuple(lost)


def _possible(session: SessionSpec | None, what: str, means: Means, lost: list[str]) -> SessionSpec | None:
    if session is None:
        return None
    why = ""
    if session.graph_file and session.graph_file not in means.graphs:
        why = "the model has no such graph"
    elif gone := tuple(cpu for cpu in session.cpus if cpu not in means.cpus):
        why = f"CPU {cpu_list(gone)} may not be used"
    elif session.threads > means.usable:
        why = f"{means.usable} may run at once"
    if why:
        lost.append(f"{what} by {session.session_id}: {why}")
    return None if why else session


def choices_of(
    pinned: Pinned, *, own: SessionSpec, chunk: int, on: Callable[[int], SessionSpec]
) -> dict[Part, Choice]:
    """The pinned parts as the loop takes them. `own` and `chunk` are the model's own session and piece; `on` gives
    the session with so many threads, placed as the loop would place it, for a pin that names no CPUs."""
    found: dict[Part, Choice] = {}
    if pinned.decode is not None:
        found["decode"] = Choice(session=_placed(pinned.decode, on))
    if pinned.prefill is not None or pinned.chunk:
        session = _placed(pinned.prefill, on) if pinned.prefill is not None else own
        found["prefill"] = Choice(session=session, chunk=pinned.chunk or chunk)
        if pinned.prefill is not None:
            found["encode"] = Choice(session=session)
    if pinned.variant is not None:
        found["variant"] = Choice(variant=pinned.variant)
    return found


def _placed(session: SessionSpec, on: Callable[[int], SessionSpec]) -> SessionSpec:
    if session.cpus:
        return session
    placed = on(session.threads)
    return msgspec.structs.replace(placed, graph_file=session.graph_file) if session.graph_file else placed
