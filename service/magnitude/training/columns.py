"""Records of tasks as training reads them: one flat table, a row a task, of any number of boards.

The exchange format of a fleet too: Parquet files with these columns (`magnitude strategy train --export`). Columns
that are missing count as not known; further ones are left alone.
"""

from __future__ import annotations

# Name and Ibis type of each column; "!" after the type: a file without it says nothing to learn from.
# `strategy` is the id of what was in force, `settings` its JSON (`policy.strategy.Strategy`); `own_threads`,
# `own_graph` and `own_chunk` are how the model runs as it was loaded, which is the default to compare with.
# `rows` to `prefix` are the situation that the strategy was chosen for (`policy.situation.Situation`).
_COLUMNS = {
    "board": "string",
    "model": "string!",
    "model_hash": "string",
    "ort_version": "string",
    "weight_bytes": "int64",
    "wall_s": "float64!",
    "kind": "string!",
    "outcome": "string!",
    "code": "string",
    "prompt_tokens": "int64!",
    "cached_tokens": "int64",
    "new_tokens": "int64!",
    "prefill_s": "float64!",
    "decode_s": "float64!",
    "batch": "float64",
    "strategy": "string!",
    "settings": "string!",
    "own_threads": "int64",
    "own_graph": "string",
    "own_chunk": "int64",
    "rows": "int64",
    "tokens": "int64",
    "cores": "int64",
    "clock_share": "float64",
    "heat": "string",
    "memory": "string",
    "supply": "string",
}
COLUMNS: dict[str, str] = {name: kind.rstrip("!") for name, kind in _COLUMNS.items()}
REQUIRED: tuple[str, ...] = tuple(name for name, kind in _COLUMNS.items() if kind.endswith("!"))
