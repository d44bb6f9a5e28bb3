"""Dumps as files that go from board to board, and what is shown of them. Pure."""

from __future__ import annotations

import msgspec

from magnitude.errors import RequestError
from magnitude.persist import OtherSchema, Unusable, sealed, unsealed
from magnitude.policy.drift import changes, weakened
from magnitude.policy.dumps import Dump, Kept
from magnitude.policy.learned import SCHEMA, Binding, Entry, Learned
from magnitude.policy.pinned import Pinned
from magnitude.policy.strategy import Strategy
from magnitude.policy.trained import SCHEMA as TRAINED_SCHEMA
from magnitude.policy.trained import Trained


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What a running service does with a model now. `fault`: why its loop was given up, "" while it was not. Since
    the service was started: `switches`, `delay_s` from the first sample that showed a decision's reason to the
    decision, on average (None: there was none), and `cpu_s`, what the loop has computed itself."""

    strategy: Strategy
    strategy_id: str
    in_words: str
    since_s: float
    on: bool = True
    fault: str = ""
    switches: int = 0
    delay_s: float | None = None
    cpu_s: float = 0.0


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    why: str


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One model's learned strategies, as the service and the files tell them. `generation` 0: never saved."""

    model: str
    folder: str
    learned: Learned
    generation: int = 0
    generations: tuple[int, ...] = ()
    retired: tuple[Retired, ...] = ()
    pinned: Pinned | None = None
    running: Running | None = None


def shown_of(kept: Kept) -> Shown | None:
    """What a folder holds; None where there is nothing but pieces."""
    retired = tuple(Retired(generation=dump.generation, why=dump.retired) for dump in kept.retired)
    newest = kept.dump or (kept.retired[-1] if kept.retired else None)
    if newest is None:
        return None
    binding = newest.learned.binding
    return Shown(
        model=binding.model,
        folder=kept.folder,
        learned=newest.learned if kept.dump else Learned(binding=binding),
        generation=kept.dump.generation if kept.dump else 0,
        generations=kept.generations,
        retired=retired,
        pinned=kept.pinned,
    )


def exported(learned: Learned, generation: int) -> bytes:
    """The file that `parsed` reads: a dump as it lies on disk."""
    return sealed(Dump(generation=generation, learned=learned), schema=SCHEMA)


def parsed(data: bytes, name: str) -> Dump | Trained:
    """The content of an exported dump or of a trained table; `name` is the file's, for errors. Raises
    `RequestError`."""
    why: list[str] = []
    for read in (_as_dump, _as_trained):
        try:
            return read(data)
        except OtherSchema as other:
            raise RequestError(
                f"{name} is of another version: {other}",
                hint="Export it with this version, or train it anew",
                param=name,
                code="dump_invalid",
            ) from other
        except (Unusable, RecursionError) as unusable:
            why.append(str(unusable))
    raise RequestError(
        f"{name} is no dump that can be used: {why[0]}",
        hint="Give a file that `magnitude strategy export` or `magnitude strategy train` wrote",
        param=name,
        code="dump_invalid",
    )


def _as_dump(data: bytes) -> Dump | Trained:
    return unsealed(data, Dump, schema=SCHEMA)


def _as_trained(data: bytes) -> Dump | Trained:
    return unsealed(data, Trained, schema=TRAINED_SCHEMA)


def taken(learned: Learned, binding: Binding, *, as_prior: bool) -> Learned:
    """What an import of `learned` puts in place for `binding`: as it is where the bindings agree, or with `as_prior`
    as a hint that weighs one sample. Raises `RequestError` where they do not agree."""
    differs = changes(learned.binding, binding)
    if as_prior:
        return _imported(weakened(learned, binding))
    if differs:
        raise RequestError(
            f"the dump was learned with something else: {', '.join(differs)}",
            hint="Import it with --as-prior: its choices are a hint then, until they are measured here",
            code="binding_mismatch",
        )
    return _imported(msgspec.structs.replace(learned, binding=binding))


def _imported(learned: Learned) -> Learned:
    entries = tuple(
        msgspec.structs.replace(entry, origin="imported") if entry.origin == "measured" else entry
        for entry in learned.entries
    )
    return msgspec.structs.replace(learned, entries=entries)


def merged(measured: Learned, table: Learned) -> Learned:
    """`measured` with the situations of `table` that it knows nothing of: what was measured on this board counts
    more than what was trained elsewhere."""
    known = {(entry.part, entry.key) for entry in measured.entries}
    new: list[Entry] = [entry for entry in table.entries if (entry.part, entry.key) not in known]
    rejected = {(one.part, one.key, one.choice): one for one in (*table.rejected, *measured.rejected)}
    chosen = {(entry.part, entry.key, entry.chosen) for entry in measured.entries}
    return msgspec.structs.replace(
        measured,
        entries=(*measured.entries, *new),
        rejected=tuple(one for at, one in rejected.items() if at not in chosen),
    )


def without(learned: Learned, table: Learned | None) -> Learned:
    """`learned` without what `merged` took over and nobody has measured here since; `table` is what it was merged
    with (None: no table fits)."""
    rejected = table.rejected if table is not None else ()
    return msgspec.structs.replace(
        learned,
        entries=tuple(entry for entry in learned.entries if entry.origin != "trained"),
        rejected=tuple(one for one in learned.rejected if one not in rejected),
    )


def pin_from(data: bytes, name: str, binding: Binding) -> Pinned:
    """A pin from a file: a strategy, a pin, or a dump, of which the choice that is known best counts for each part.
    Raises `RequestError`."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_pin(name, str(error)) from error
    if isinstance(document, dict) and "sha256" in document:
        found = parsed(data, name)
        if isinstance(found, Trained):
            raise _no_pin(name, "it is a trained table, which holds for many boards")
        return _best_known(found.learned, binding)
    try:
        if isinstance(document, dict) and isinstance(document.get("decode"), dict) and "kv_budget_bytes" in document:
            strategy = msgspec.convert(document, Strategy)
            return Pinned(
                board=binding.board,
                model=binding.model,
                # Encoders have strategies of the same shape, but nothing in them decodes.
                decode=strategy.decode if strategy.max_batch else None,
                prefill=strategy.prefill,
                chunk=strategy.prefill_chunk if strategy.max_batch else 0,
                variant=strategy.variant,
            )
        here = {"board": binding.board, "model": binding.model}
        pinned = msgspec.convert({**document, **here} if isinstance(document, dict) else document, Pinned)
    except (msgspec.ValidationError, TypeError) as error:
        raise _no_pin(name, str(error)) from error
    if pinned.empty:
        raise _no_pin(name, "it fixes nothing")
    return pinned


def _best_known(learned: Learned, binding: Binding) -> Pinned:
    best: dict[str, tuple[float, Entry]] = {}
    for entry in learned.entries:
        weight = sum(each.weight for each in entry.evidence if each.choice == entry.chosen)
        if entry.part not in best or weight > best[entry.part][0]:
            best[entry.part] = (weight, entry)
    chosen = {part: entry.chosen for part, (_, entry) in best.items()}
    prefill = chosen.get("prefill") or chosen.get("encode")
    pinned = Pinned(
        board=binding.board,
        model=binding.model,
        decode=chosen["decode"].session if "decode" in chosen else None,
        prefill=prefill.session if prefill else None,
        chunk=prefill.chunk if prefill else 0,
        variant=chosen["variant"].variant if "variant" in chosen else None,
    )
    if pinned.empty:
        raise RequestError("the dump has no choices that could be fixed", code="pin_invalid")
    return pinned


def _no_pin(name: str, why: str) -> RequestError:
    return RequestError(
        f"{name} names nothing that can be fixed: {why}",
        hint="Give a strategy as `magnitude strategy show --json` prints it under running.strategy, or a dump",
        param=name,
        code="pin_invalid",
    )
