"""From a table of records to arrays by situation and choice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import ibis
import msgspec
import numpy as np
import pyarrow as pa

from magnitude.policy.learned import Choice, parts_of
from magnitude.policy.strategy import Strategy
from magnitude.training import work
from magnitude.training.cells import SUMS, Cell, Fleet, Floats, ServedModel, Tried, default_of
from magnitude.training.reading import Records

if TYPE_CHECKING:
    import ibis.expr.types as ir


def gather(records: Records) -> Fleet:
    """Run the expressions of `work` where the records are."""
    run = records.backend.to_pyarrow

    def rows(table: ir.Table) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = run(table).to_pylist()
        return found

    flat = records.table
    usable = work.usable(flat)
    choices, unreadable = _choices(rows(work.settings_of(flat)))
    by_part = work.by_part(usable, choices)
    served = rows(work.served(usable))
    tails = {_key(row, row["choice"]): row["p95_s"] for row in rows(work.tails(by_part))}
    return Fleet(
        models=_models(served, rows(work.cells(by_part)), tails),
        records=run(flat.count()).as_py(),
        tasks=sum(row["tasks"] for row in served),
        unreadable=unreadable,
    )


def _choices(settings: Iterable[dict[str, Any]]) -> tuple[ir.Table, tuple[str, ...]]:
    """A row for each strategy and part, and the ids of strategies that cannot be read. Their JSON is taken apart
    here: they are few, and backends differ in their functions for it."""
    found: dict[str, list[str]] = {"strategy": [], "part": [], "choice": []}
    unreadable = []
    for row in settings:
        try:
            strategy = msgspec.json.decode(row["settings"], type=Strategy)
        except msgspec.MsgspecError:
            unreadable.append(row["strategy"])
            continue
        for part, choice in parts_of(strategy).items():
            found["strategy"].append(row["strategy"])
            found["part"].append(part)
            found["choice"].append(msgspec.json.encode(choice, order="sorted").decode())
    columns = pa.table(found, schema=pa.schema([(name, pa.string()) for name in found]))
    return ibis.memtable(columns), tuple(unreadable)


def _key(row: dict[str, Any], *more: str) -> tuple[str, ...]:
    return (*(row[name] for name in work.CELL), *more)


def _models(
    served: list[dict[str, Any]], rows: list[dict[str, Any]], tails: dict[tuple[str, ...], float | None]
) -> tuple[ServedModel, ...]:
    by_model: dict[tuple[str, ...], dict[tuple[str, ...], list[dict[str, Any]]]] = {}
    for row in rows:
        model = tuple(row[name] for name in work.MODEL)
        by_model.setdefault(model, {}).setdefault(_key(row), []).append(row)
    found = []
    for identity in sorted(by_model):
        ways = [row for row in served if tuple(row[name] for name in work.MODEL) == identity]
        own = max(ways, key=lambda row: row["tasks"])
        threads, graph, chunk = own["own_threads"] or 0, own["own_graph"] or "", own["own_chunk"] or 0
        board, model_name, model_hash, ort_version = identity
        cells = [_cell(of_cell, tails, threads, graph, chunk) for _, of_cell in sorted(by_model[identity].items())]
        found.append(
            ServedModel(
                board=board,
                model=model_name,
                model_hash=model_hash,
                ort_version=ort_version,
                own_threads=threads,
                own_graph=graph,
                own_chunk=chunk,
                weight_bytes=int(max(row["weight_bytes"] or 0 for row in ways)),
                tasks=sum(row["tasks"] for row in ways),
                cells=tuple(cells),
            )
        )
    return tuple(found)


def _cell(
    rows: list[dict[str, Any]],
    tails: dict[tuple[str, ...], float | None],
    own_threads: int,
    own_graph: str,
    own_chunk: int,
) -> Cell:
    blocks: dict[str, Floats] = {}
    for row in rows:
        of_choice = blocks.setdefault(row["choice"], np.zeros((work.BLOCKS, len(SUMS))))
        of_choice[row["block"]] = [row[name] for name in SUMS]
    first = rows[0]
    counts = [row["ok"] + row["failed"] for row in rows]
    tried = [
        Tried(
            choice=msgspec.json.decode(text, type=Choice),
            blocks=blocks[text],
            p95_s=tails.get(_key(first, text)) or 0.0,
        )
        for text in sorted(blocks)
    ]

    def mean(name: str) -> float:
        return float(np.average([row[f"{name}_mean"] for row in rows], weights=counts))

    return Cell(
        part=first["part"],
        key=first["key"],
        tried=tuple(tried),
        default=default_of(first["part"], [one.choice for one in tried], own_threads, own_graph, own_chunk),
        rows=mean("rows"),
        tokens=mean("tokens"),
        cores=mean("cores"),
        clock_share=mean("clock_share"),
        heat_level=mean("heat_level"),
    )
