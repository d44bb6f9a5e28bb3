"""Ibis expressions from flat records to figures by situation and choice. Written once: they run on DuckDB here, and
on any backend of Ibis that a fleet's records lie in (a test compiles them to Spark's SQL).

What comes out is small whatever goes in: a row for each board, model, part, situation, choice and block of time.
"""

from __future__ import annotations

import functools

import ibis
import ibis.expr.types as ir

from magnitude.policy.situation import CLOCK_EDGES, ROW_EDGES, TOKEN_EDGES, Part
from magnitude.policy.tree import HEAT_LEVEL

# Records of a board and model are cut into so many blocks of equal numbers, by time: what is near in time is alike,
# so intervals come from drawing blocks, not tasks. More would be too short to hold both sides of a comparison.
BLOCKS = 50

# Failures that how a task is run has a share in. Not told as such: wrong requests, an engine that was not up yet.
PRICED_OUTCOMES = ("timed_out", "killed", "out_of_memory")
PRICED_CODES = ("queue_full", "engine_error")

# Which model's records belong together. Another runtime is another model to what was learned.
MODEL = ("board", "model", "model_hash", "ort_version")
CELL = (*MODEL, "part", "key")
_EXPLAINING = ("rows", "tokens", "cores", "clock_share", "heat_level", "weight_bytes")


def usable(records: ir.Table) -> ir.Table:
    """Tasks that say something about a choice: complete or failed for want of speed or room, by a known strategy;
    with the block of time that each lies in."""
    failed = records.outcome.isin(PRICED_OUTCOMES) | (
        records.outcome.isin(("failed", "refused")) & records.code.isin(PRICED_CODES)
    )
    kept = records.mutate(
        board=_text(records.board),
        model_hash=_text(records.model_hash),
        ort_version=_text(records.ort_version),
        failed=failed.fill_null(False),
    ).filter(
        records.strategy.notnull(),
        records.settings.notnull(),
        records.wall_s.notnull(),
        records.kind.isin(("generate", "embed", "infer")),
        failed.fill_null(False) | (records.outcome == "ok"),
    )
    computed = kept.prompt_tokens - kept.cached_tokens.fill_null(0)
    in_order = ibis.window(group_by=[kept[name] for name in MODEL], order_by=kept.wall_s)
    return kept.mutate(
        computed=(computed < 0).ifelse(0, computed),
        tokens=kept.tokens.fill_null((computed < 0).ifelse(0, computed)),
        # A mean of 1.4 rows is one of 1: the edges are whole numbers of rows.
        rows=(kept.batch.fill_null(0.0) > 0).ifelse(kept.batch, kept.rows.fill_null(1).cast("float64")),
        cores=kept.cores.fill_null(0),
        clock_share=kept.clock_share.fill_null(1.0),
        heat=_text(kept.heat, "cool"),
        memory=_text(kept.memory, "ample"),
        supply=_text(kept.supply, "full"),
        heat_level=ibis.cases(
            *((kept.heat == heat, level) for heat, level in HEAT_LEVEL.items()), else_=HEAT_LEVEL["cool"]
        ),
        weight_bytes=kept.weight_bytes.fill_null(0).cast("float64"),
        run_s=kept.prefill_s + kept.decode_s,
        block=ibis.ntile(BLOCKS).over(in_order),
    )


def settings_of(records: ir.Table) -> ir.Table:
    """Every strategy that occurs, once: its id and its JSON. Who wrote it decides on the order of its keys, so that
    one strategy may stand there in several ways."""
    named = records.filter(records.strategy.notnull(), records.settings.notnull())
    return named.group_by("strategy").agg(settings=named.settings.min())


def served(tasks: ir.Table) -> ir.Table:
    """How often each model was served in which way of its own: what its tasks are to be compared with."""
    columns = [*MODEL, "own_threads", "own_graph", "own_chunk"]
    return tasks.group_by(columns).agg(tasks=tasks.count(), weight_bytes=tasks.weight_bytes.max())


def by_part(tasks: ir.Table, choices: ir.Table) -> ir.Table:
    """A row for each task and part of its strategy: what was chosen, in which situation (`key`, as
    `policy.situation.key_of` writes it), and what a unit of it cost (null where the task failed).

    `choices`: `strategy`, `part` and `choice`, the JSON of what that strategy is for that part."""
    answers, texts = tasks.kind == "generate", tasks.kind != "generate"
    board = _joined(
        "cores=", tasks.cores.cast("int64").cast("string"), " clock=", _edge(tasks.clock_share, CLOCK_EDGES)
    )
    by_tokens = _joined("tokens=", _edge(tasks.tokens, TOKEN_EDGES), " ", board)
    by_rows = _joined("rows=", _edge(tasks.rows, ROW_EDGES), " ", board)
    whole = _joined("task=", tasks.kind, " heat=", tasks.heat, " memory=", tasks.memory, " supply=", tasks.supply)
    steps = tasks.new_tokens - 1  # the first token is the prompt's
    parts = [
        _part(tasks, "decode", where=answers, key=by_rows, spent_s=tasks.decode_s, units=steps),
        _part(tasks, "prefill", where=answers, key=by_tokens, spent_s=tasks.prefill_s, units=tasks.computed),
        _part(tasks, "encode", where=texts, key=by_tokens, spent_s=tasks.run_s, units=tasks.computed),
        _part(
            tasks,
            "variant",
            where=tasks.kind.notnull(),
            key=whole,
            spent_s=tasks.run_s,
            units=tasks.computed + tasks.new_tokens,
        ),
    ]
    united = functools.reduce(lambda left, right: left.union(right), parts)
    return united.inner_join(choices, ["strategy", "part"])


def cells(parts: ir.Table) -> ir.Table:
    """Sums by board, model, part, situation, choice and block. Logarithms: ratios are what is compared, and a task
    that waited for something once must not outweigh a hundred others."""
    log_cost = parts.cost_s.ln()
    figures = {
        "ok": parts.cost_s.count(),
        "failed": parts.failed.cast("int64").sum(),
        "log_sum": log_cost.sum().fill_null(0.0),
        "log_square_sum": (log_cost * log_cost).sum().fill_null(0.0),
        "unit_sum": parts.cost_s.notnull().ifelse(parts.units, 0.0).sum(),
        "ok_s": parts.failed.ifelse(0.0, parts.run_s).sum(),
        "failed_s": parts.failed.ifelse(parts.run_s, 0.0).sum(),
    }
    figures |= {f"{name}_mean": parts[name].cast("float64").mean() for name in _EXPLAINING}
    return parts.group_by([*CELL, "choice", "block"]).agg(**figures)


def tails(parts: ir.Table) -> ir.Table:
    """The 95th percentile of a unit's cost by board, model, part, situation and choice."""
    return parts.group_by([*CELL, "choice"]).agg(p95_s=parts.cost_s.quantile(0.95))


def _part(
    tasks: ir.Table,
    part: Part,
    *,
    where: ir.BooleanValue,
    key: ir.StringValue,
    spent_s: ir.FloatingValue,
    units: ir.IntegerValue,
) -> ir.Table:
    """Tasks of one kind as that part sees them. One that is complete must say what a unit cost."""
    told = ~tasks.failed & (spent_s > 0) & (units > 0)
    return tasks.filter(where & (tasks.failed | told)).select(
        *MODEL,
        "strategy",
        "block",
        "failed",
        "run_s",
        "rows",
        "cores",
        "clock_share",
        "heat_level",
        "weight_bytes",
        tokens=tasks.tokens.cast("float64"),
        part=ibis.literal(part),
        key=key,
        units=units.cast("float64"),
        cost_s=told.ifelse(spent_s / units.cast("float64"), ibis.null("float64")),
    )


def _edge(value: ir.NumericValue, edges: tuple[float, ...]) -> ir.StringValue:
    """As `policy.situation.bucket`, in the words of a key."""
    return ibis.cases(
        *((value >= edge, f"{edge:g}") for edge in reversed(edges)),
        else_=f"{edges[0]:g}",
    )


def _text(value: ir.StringValue, otherwise: str = "") -> ir.StringValue:
    return value.fill_null(otherwise)


def _joined(*parts: str | ir.StringValue) -> ir.StringValue:
    values = [ibis.literal(part) if isinstance(part, str) else part for part in parts]
    return functools.reduce(lambda left, right: left + right, values)
