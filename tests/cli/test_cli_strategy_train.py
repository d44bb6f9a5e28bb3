"""`magnitude strategy train` as its user sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from magnitude.cli.main import EXIT_ERROR
from magnitude.cli.strategy_train import EXIT_REFUSED, register_strategy
from magnitude.errors import ConfigError
from magnitude.policy.dump_exchange import parsed
from magnitude.policy.strategy import Strategy
from magnitude.policy.trained import Trained
from magnitude.training.reading import NothingToRead
from magnitude.training.training import NothingLearned

sys.path.insert(0, str(Path(__file__).parent.parent / "training"))

from simulated_fleet import Trouble, rows_of, strategy, table_of, untroubled

PAIR = [strategy(4), strategy(2)]


def run(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)  # a group of one command would be that command
    register_strategy(app)
    result = CliRunner().invoke(app, ["train", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@cache
def simulated(trouble: Trouble) -> pa.Table:
    return table_of(rows_of("pi5-bare", PAIR, tasks=1500, trouble=trouble))


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Trouble], Path]:
    def write(trouble: Trouble = untroubled) -> Path:
        path = tmp_path / "records.parquet"
        pq.write_table(simulated(trouble), path)
        return path

    return write


def worn(used: Strategy, number: int) -> tuple[float, float]:
    return (2.0 if used.decode.threads == 2 and number >= 1200 else 1.0), 0.0


def trap(used: Strategy, _number: int) -> tuple[float, float]:
    return (0.5, 0.05) if used.decode.threads == 2 else (1.0, 0.0)


def test_a_table_is_written_and_named_by_its_id(recorded: Callable[..., Path], tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    result = run(recorded(), "-o", table)
    assert result.exit_code == 0, result.output
    trained = parsed(table.read_bytes(), str(table))
    assert isinstance(trained, Trained)
    assert trained.trained_id[:12] in result.output
    assert {entry.chosen.choice_id for entry in trained.tables[0].entries if entry.part == "decode"} == {"2 threads"}
    assert ["pi5-bare", "chat", "decode", "table", "all"] in [line.split()[:5] for line in result.output.splitlines()]


def test_a_table_that_would_lose_is_not_written_and_the_status_says_so(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    table, report = tmp_path / "table.json", tmp_path / "report.md"
    result = run(recorded(worn), "-o", table, "--report", report)
    assert result.exit_code == EXIT_REFUSED
    assert EXIT_REFUSED != EXIT_ERROR
    assert not table.exists()
    assert "chat on pi5-bare, decode" in result.output
    assert "hint:" in result.output
    assert "Refused" in report.read_text("utf-8")


def test_a_choice_that_fails_too_often_is_named_once_with_its_reason(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    result = run(recorded(trap), "-o", tmp_path / "t.json")
    lines = [line for line in result.output.splitlines() if line.startswith("rejected: 2 threads for decode of chat")]
    assert len(lines) == 1
    assert "tasks failed" in lines[0]


def test_an_earlier_table_is_left_alone_by_one_that_is_refused(recorded: Callable[..., Path], tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    run(recorded(), "-o", table)
    before = table.read_bytes()
    assert run(recorded(worn), "-o", table).exit_code == EXIT_REFUSED
    assert table.read_bytes() == before


def test_the_tolerance_is_the_users(recorded: Callable[..., Path], tmp_path: Path) -> None:
    assert run(recorded(worn), "-o", tmp_path / "t.json", "--tolerance", "0.5").exit_code == 0


def test_json_on_stdout_is_json_alone(recorded: Callable[..., Path], tmp_path: Path) -> None:
    result = run(recorded(), "--json", "-o", tmp_path / "t.json")
    assert json.loads(result.stdout)["proof"]["boards"] == ["pi5-bare"]


def test_a_plot_is_drawn_in_the_kind_that_its_name_says(recorded: Callable[..., Path], tmp_path: Path) -> None:
    run(recorded(), "-o", tmp_path / "t.json", "--plot", tmp_path / "gains.svg")
    assert (tmp_path / "gains.svg").read_bytes().startswith(b"<?xml")


def test_records_can_be_taken_from_many_files_into_one(recorded: Callable[..., Path], tmp_path: Path) -> None:
    result = run(recorded(), "--export", tmp_path / "fleet.parquet")
    assert result.exit_code == 0
    assert "1500 tasks" in result.output
    assert pq.read_metadata(tmp_path / "fleet.parquet").num_rows == 1500


def test_a_file_that_is_left_out_is_told(recorded: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0torn")
    result = run(recorded(), tmp_path / "torn.db", "-o", tmp_path / "t.json")
    assert result.exit_code == 0
    assert f"left out: {tmp_path / 'torn.db'}" in result.output
    document = json.loads(run(recorded(), tmp_path / "torn.db", "--json").stdout)
    assert [one["path"] for one in document["left_out"]] == [str(tmp_path / "torn.db")]
    assert document["left_out"][0]["hint"]


def test_records_of_one_way_to_run_teach_nothing_and_no_table_is_written(tmp_path: Path) -> None:
    pq.write_table(table_of(rows_of("pi5-bare", [strategy(4)], tasks=100)), tmp_path / "records.parquet")
    with pytest.raises(NothingLearned, match="nothing was learned") as raised:
        run(tmp_path / "records.parquet", "-o", tmp_path / "t.json")
    assert raised.value.hint
    assert not (tmp_path / "t.json").exists()


def test_no_records_at_all_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NothingToRead):
        run(tmp_path / "none.db", "-o", tmp_path / "t.json")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "nothing is to be written"),
        (("-o", "t.json", "--report", "r.doc"), "r.doc"),
        (("-o", "t.json", "--plot", "p.bmp"), "p.bmp"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_read(
    arguments: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=named):
        run(tmp_path / "none.db", *arguments)


def test_the_service_and_the_other_verbs_load_nothing_of_the_extra() -> None:
    code = (
        "import sys; from magnitude.cli.main import find_verbs; find_verbs(); import magnitude.service_loop;"
        "loaded = {name.split('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'ibis', 'duckdb', 'pyarrow', 'sklearn', 'pandas'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("library", ["ibis", "pyarrow", "sklearn"])
def test_without_the_extra_it_is_said_what_to_install(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What Python does where a module is not installed.
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=library) as raised:
        run(tmp_path / "none.db", "-o", tmp_path / "t.json")
    assert "magnitude[train]" in raised.value.hint
