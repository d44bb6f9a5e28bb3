"""The expressions over records: they see situations as the device does, and run on other backends."""

from __future__ import annotations

from typing import Any

import ibis
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_fleet import rows_of, strategy, table_of

from magnitude.policy.learned import parts_of
from magnitude.policy.situation import CLOCK_EDGES, Part, Situation, key_of
from magnitude.policy.strategy import Strategy
from magnitude.training import work
from magnitude.training.columns import COLUMNS
from magnitude.training.gather import gather
from magnitude.training.reading import Records

CHOICES = ibis.schema({"strategy": "string", "part": "string", "choice": "string"})


def _row(**changed: Any) -> dict[str, Any]:
    (row,) = rows_of("pi5-bare", [strategy(2)], tasks=1)
    return {**row, **changed}


def _records(*rows: dict[str, Any]) -> Records:
    return Records(backend=ibis.duckdb.connect(), table=ibis.memtable(table_of(rows)), files=1, skipped=())


def _keys(row: dict[str, Any]) -> dict[str, str]:
    return {cell.part: cell.key for model in gather(_records(row)).models for cell in model.cells}


situations = st.builds(
    Situation,
    task=st.sampled_from(["generate", "embed", "infer"]),
    tokens=st.integers(1, 5000),
    rows=st.integers(1, 64),
    cores=st.integers(1, 16),
    heat=st.sampled_from(["cool", "warm", "hot"]),
    clock_share=st.floats(0.0, 1.0) | st.sampled_from(CLOCK_EDGES),
    memory=st.sampled_from(["ample", "short"]),
    supply=st.sampled_from(["full", "saving", "least"]),
)


@settings(max_examples=4, deadline=None)
@given(moments=st.lists(situations, min_size=20, max_size=60))
def test_a_situation_has_the_key_that_the_device_gives_it(moments: list[Situation]) -> None:
    names = ("tokens", "rows", "cores", "heat", "clock_share", "memory", "supply")
    rows = [
        _row(kind=at.task, model=str(number), batch=0.0, **{name: getattr(at, name) for name in names})
        for number, at in enumerate(moments)
    ]
    found = {
        int(model.model): {cell.part: cell.key for cell in model.cells} for model in gather(_records(*rows)).models
    }
    for number, at in enumerate(moments):
        parts: tuple[Part, ...] = ("decode", "prefill", "variant") if at.task == "generate" else ("encode", "variant")
        assert found[number] == {part: key_of(part, at) for part in parts}


def test_rows_that_ran_together_go_before_those_that_were_expected() -> None:
    assert _keys(_row(rows=1, batch=3.2))["decode"].startswith("rows=3 ")


def test_a_record_without_a_situation_is_keyed_by_what_it_computed() -> None:
    nothing = dict.fromkeys(("rows", "tokens", "cores", "heat", "clock_share", "memory", "supply", "batch"))
    found = _keys(_row(prompt_tokens=200, cached_tokens=100, **nothing))
    assert found["prefill"] == "tokens=33 cores=0 clock=0.9"
    assert found["decode"] == "rows=1 cores=0 clock=0.9"
    assert found["variant"] == "task=generate heat=cool memory=ample supply=full"


def test_only_what_a_strategy_has_a_share_in_counts_as_its_failure() -> None:
    counts = {
        ("ok", ""): [1.0, 0.0],
        ("timed_out", "deadline_exceeded"): [0.0, 1.0],
        ("killed", "engine_gone"): [0.0, 1.0],
        ("out_of_memory", "memory_pressure"): [0.0, 1.0],
        ("refused", "queue_full"): [0.0, 1.0],
        ("failed", "engine_error"): [0.0, 1.0],
        ("refused", "engine_not_ready"): None,
        ("failed", "invalid_request"): None,
        ("cancelled", "cancelled"): None,
    }
    fleet = gather(
        _records(*(_row(outcome=outcome, code=code, model=f"{outcome} {code}") for outcome, code in counts))
    )
    found = {model.model: [list(cell.tried[0].total()[:2]) for cell in model.cells] for model in fleet.models}
    for (outcome, code), expected in counts.items():
        assert found.get(f"{outcome} {code}") == (None if expected is None else [expected] * 3)


def test_cached_tokens_of_a_prompt_cost_nothing() -> None:
    row = _row(prompt_tokens=300, cached_tokens=200, prefill_s=1.0)
    (cell,) = [cell for cell in gather(_records(row)).models[0].cells if cell.part == "prefill"]
    assert cell.tried[0].total()[2] == pytest.approx(-4.605, abs=1e-3)  # ln(1 s / 100 tokens)


def test_a_task_of_one_token_says_nothing_of_decoding() -> None:
    assert "decode" not in _keys(_row(new_tokens=1))


def test_runtimes_are_kept_apart() -> None:
    fleet = gather(_records(_row(), _row(ort_version="1.33.0")))
    assert [model.ort_version for model in fleet.models] == ["1.32.0", "1.33.0"]


def test_a_strategy_of_another_version_is_left_out_and_named() -> None:
    fleet = gather(_records(_row(), _row(strategy="deadbeef", settings='{"prefill": 7}')))
    assert fleet.unreadable == ("deadbeef",)
    assert sum(cell.tasks for cell in fleet.models[0].cells if cell.part == "decode") == 1


def test_a_task_counts_once_however_its_strategy_is_written() -> None:
    row = _row()
    other = msgspec.json.encode(msgspec.json.decode(row["settings"], type=Strategy), order="sorted").decode()
    assert other != row["settings"]
    fleet = gather(_records(row, {**row, "settings": other}))
    assert {cell.tasks for cell in fleet.models[0].cells} == {2}


def test_each_part_is_compared_by_what_it_alone_changes() -> None:
    both = strategy(2, 4, chunk=64)
    assert parts_of(both)["decode"].choice_id == "2 threads"
    assert parts_of(both)["prefill"].choice_id == "4 threads, pieces of 64"
    assert parts_of(both)["encode"].choice_id == "4 threads"
    assert parts_of(msgspec.structs.replace(both, variant="small"))["variant"].choice_id == "small"


# Ibis' dialect for Spark asks for an option that only an installed PySpark has; Databricks' is the same SQL.
@pytest.mark.parametrize("dialect", ["duckdb", "databricks"])
def test_all_expressions_are_sql_of_other_backends_too(dialect: str) -> None:
    usable = work.usable(ibis.table(COLUMNS, name="records"))
    by_part = work.by_part(usable, ibis.table(CHOICES, name="choices"))
    for expression in (work.served(usable), work.settings_of(usable), work.cells(by_part), work.tails(by_part)):
        assert "records" in ibis.to_sql(expression, dialect=dialect)
