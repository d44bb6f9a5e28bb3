"""What a person does to learned strategies: import, reset, pin. The same for a running service and for bare files.

`known` has by model what is learned now; its binding is what the model runs on. Everything here blocks on storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from magnitude.errors import MagnitudeError, ModelNotFound, RequestError
from magnitude.policy.drift import HASH_DIGITS
from magnitude.policy.dump_exchange import merged, parsed, taken, without
from magnitude.policy.dumps import Dump, Dumps
from magnitude.policy.learned import Learned
from magnitude.policy.pinned import Means, Pinned, possible
from magnitude.policy.trained import Trained

# More threads than any board has cores, and pieces beyond what a prompt's run is ever given.
MOST_THREADS, LEAST_CHUNK, MOST_CHUNK = 256, 8, 4096

Known = Mapping[str, Learned]
Change = Literal["imported", "reset", "pinned", "unpinned"]


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """`models` must be read again by whoever runs them: of "pinned" and "unpinned" only what is fixed. `text` says
    what was done."""

    models: tuple[str, ...]
    change: Change
    text: str


class NotKept(MagnitudeError):
    """The storage refuses; nothing was changed."""

    code = "storage_refused"


def import_file(dumps: Dumps, known: Known, data: bytes, name: str, *, model: str = "", as_prior: bool) -> Changed:
    """Let the dump or trained table in `data` count. Raises `RequestError` where it cannot be used or does not fit,
    `ModelNotFound`, and `NotKept`."""
    found = parsed(data, name)
    if isinstance(found, Trained):
        return _install(dumps, known, found)
    return _import(dumps, known, found, model, as_prior=as_prior)


def reset(dumps: Dumps, known: Known, models: tuple[str, ...]) -> Changed:
    """Forget what was learned of these; the generation before stays. Raises `ModelNotFound` and `NotKept`."""
    for model in models:
        _kept(dumps, dumps.reset(known_of(known, model).binding))
    return Changed(models=models, change="reset", text=f"{', '.join(models)}: learned strategies are reset")


def reset_trained(dumps: Dumps, known: Known) -> Changed:
    """Take the installed table away, and of each model what came from it and was not measured here. Raises
    `RequestError` where none is installed, and `NotKept`."""
    trained = dumps.trained()
    if trained is None:
        raise RequestError("no trained table is installed", hint="`magnitude strategy import TABLE` installs one")
    _kept(dumps, dumps.install(None))
    lines = [f"trained table {trained.trained_id[:HASH_DIGITS]} is taken away"]
    if trained.tree is not None:
        lines.append(f"its tree {trained.tree.name} decides until the next start")
    changed = []
    for model, learned in known.items():
        left = without(learned, trained.learned_for(learned.binding))
        if left != learned:
            _kept(dumps, dumps.replace(left))
            changed.append(model)
            gone = len(learned.entries) - len(left.entries)
            lines.append(f"{model}: {gone} situation{'' if gone == 1 else 's'} of it forgotten")
    return Changed(models=tuple(changed), change="reset", text="\n".join(lines))


def pin(dumps: Dumps, known: Known, model: str, pinned: Pinned | None, means: Means | None = None) -> Changed:
    """Fix parts, besides those that are fixed already; None: fix nothing any more. `means` is what there is to run
    the model by, None: not known yet. Raises `RequestError` for what can not be, `ModelNotFound` and `NotKept`."""
    binding = known_of(known, model).binding
    if pinned is None:
        _kept(dumps, dumps.pin(binding, None))
        return Changed(models=(model,), change="unpinned", text=f"{model}: nothing is fixed any more")
    _check(pinned, means)
    before = dumps.pinned(binding)
    both = pinned if before is None else _over(before, pinned)
    both = msgspec.structs.replace(both, board=binding.board, model=binding.model)
    _kept(dumps, dumps.pin(binding, both))
    return Changed(models=(model,), change="pinned", text=f"{model}: fixed are {both.in_words}")


def _import(dumps: Dumps, known: Known, dump: Dump, model: str, *, as_prior: bool) -> Changed:
    binding = dump.learned.binding
    if not model:
        same_weights = [name for name, one in known.items() if one.binding.model_hash == binding.model_hash]
        fitting = same_weights or [name for name in known if name == binding.model]
        if not fitting:
            raise ModelNotFound(
                f"the dump is of {binding.model}, weights {binding.model_hash[:HASH_DIGITS]}: no such model is here",
                hint=f"Import the model first, or name one with --model: {', '.join(known) or 'there is none'}",
                param="model",
            )
        model = fitting[0]
    learned = taken(dump.learned, known_of(known, model).binding, as_prior=as_prior)
    _kept(dumps, dumps.replace(learned))
    how = "as a hint" if as_prior else "as it is"
    count = len(learned.entries)
    text = f"{model}: {count} situation{'' if count == 1 else 's'} imported {how}"
    return Changed(models=(model,), change="imported", text=text)


def _install(dumps: Dumps, known: Known, trained: Trained) -> Changed:
    _kept(dumps, dumps.install(trained))
    lines = [f"trained table {trained.trained_id[:HASH_DIGITS]} is installed"]
    if trained.tree is not None:
        lines.append(f"its tree {trained.tree.name} decides where no table does, from the next start on")
    for model, learned in known.items():
        table = trained.learned_for(learned.binding)
        if table is None:
            lines.append(f"{model}: no table of it fits")
            continue
        both = merged(learned, table)
        added = len(both.entries) - len(learned.entries)
        _kept(dumps, dumps.replace(both))
        lines.append(f"{model}: {added} of its {len(table.entries)} situations were not known here")
    return Changed(models=tuple(known), change="imported", text="\n".join(lines))


def known_of(known: Known, model: str) -> Learned:
    """What is learned of it. Raises `ModelNotFound`."""
    if model not in known:
        raise ModelNotFound(
            f"there is no model {model!r} of which strategies are learned here",
            hint=f"There are {', '.join(known)}" if known else "Once a model serves there is",
            param="model",
        )
    return known[model]


def _kept(dumps: Dumps, done: bool) -> None:
    if not done:
        raise NotKept(dumps.off, hint="Check the storage, and who may write there")


def _over(before: Pinned, new: Pinned) -> Pinned:
    return Pinned(
        board=new.board,
        model=new.model,
        decode=new.decode or before.decode,
        prefill=new.prefill or before.prefill,
        chunk=new.chunk or before.chunk,
        variant=before.variant if new.variant is None else new.variant,
    )


def _check(pinned: Pinned, means: Means | None) -> None:
    if pinned.empty:
        raise RequestError("nothing is named that should be fixed", hint="Name threads, a piece or a variant")
    for session in (pinned.decode, pinned.prefill):
        if session is not None and not 1 <= session.threads <= MOST_THREADS:
            raise RequestError(f"{session.threads} threads cannot be", hint=f"Give 1 to {MOST_THREADS}")
    if pinned.chunk and not LEAST_CHUNK <= pinned.chunk <= MOST_CHUNK:
        raise RequestError(
            f"prompts cannot enter in pieces of {pinned.chunk}", hint=f"Give {LEAST_CHUNK} to {MOST_CHUNK} tokens"
        )
    if means is not None and (lost := possible(pinned, means)[1]):
        raise RequestError(
            f"this cannot be fixed: {'; '.join(lost)}", hint=f"There is: {means.in_words}", code="pin_invalid"
        )
