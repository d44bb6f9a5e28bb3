from __future__ import annotations

import asyncio
import json
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest
from fake_service import FakeService
from typer.testing import CliRunner

from magnitude.cli.main import app
from magnitude.cli.replay import EXIT_OTHER, EXIT_SAME, try_again
from magnitude.errors import ConfigError, ModelError
from magnitude.feedback import record_table
from magnitude.feedback.bundles import Victim, find_bundle, read_bundle
from magnitude.feedback.failures import FailureLimits, FailureLog
from magnitude.feedback.record_file import RecordFile, RecordLimits, reading
from magnitude.feedback.replay import models_of, requests_of
from magnitude.supervise.engine_process import EngineProcess, OnExit
from magnitude.supervise.loss import EngineLoss
from tests.feedback.failure_samples import surroundings, victim
from tests.feedback.record_samples import MovingClocks, decision, row

FAKE_ENGINE = Path(__file__).parent.parent / "supervise/fake_engine.py"


@pytest.fixture
def failures_folder(own_home: Path) -> Path:
    return own_home / "state/failures"


def lost(folder: Path, loss: EngineLoss, *victims: Victim, keep_content: bool = True) -> None:
    limits = FailureLimits(reserve_bytes=0, keep_content=keep_content)
    log = FailureLog(folder, limits, surroundings(), clocks=MovingClocks())
    log.engine_lost(loss, victims)
    log.close()


# --- records ---


def test_records_are_asked_of_the_running_service(cli: CliRunner, service: FakeService) -> None:
    service.records = [row(3, outcome="killed", code="engine_gone", request="req-7", new_tokens=5)]
    result = cli.invoke(app, ["records", "--failures", "--limit", "7", "--url", f"unix:{service.socket}"])
    assert result.exit_code == 0, result.output
    assert service.asked == {"outcome": "failures", "limit": "7"}
    assert "killed (engine_gone)" in result.stdout
    assert "req-7" in result.stdout
    assert "1 task on record: 1 killed" in result.stdout


def test_records_are_read_from_the_file_while_no_service_runs(cli: CliRunner, own_home: Path) -> None:
    file = RecordFile(own_home / "state/records.db", RecordLimits(reserve_bytes=0))
    file.append([row(n, outcome="ok" if n % 2 else "refused") for n in range(6)])
    file.close()
    result = cli.invoke(app, ["records", "--failures", "--json", "-n", "2"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert [entry["task"]["prompt_tokens"] for entry in said["data"]] == [4, 2]
    assert said["counts"] == {"ok": 3, "refused": 3}


def test_a_task_is_shown_with_its_strategy_and_what_held_it_back(cli: CliRunner, service: FakeService) -> None:
    task = row(3, strategy="0123456789ab")
    met = msgspec.structs.replace(task.circumstances, temperature_c=71.4, throttled=True)
    service.records = [msgspec.structs.replace(task, circumstances=met)]
    said = cli.invoke(app, ["records", "--url", f"unix:{service.socket}"]).stdout
    assert "71 °C, held" in said
    assert "0123456789ab" in said


def test_all_records_can_be_taken_elsewhere_in_one_file(cli: CliRunner, own_home: Path, tmp_path: Path) -> None:
    file = RecordFile(own_home / "state/records.db", RecordLimits(reserve_bytes=0))
    file.append([row(n) for n in range(6)])
    file.append([decision(7)])  # both still in the log beside the file
    for name in ("out.jsonl", "out.db"):
        result = cli.invoke(app, ["records", "--export", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert "6 tasks" in result.stdout
    file.close()
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["task"]["prompt_tokens"] for line in lines] == [5, 4, 3, 2, 1, 0]
    with reading(tmp_path / "out.db") as connection:
        assert len(record_table.recent(connection, 10)) == 6
        assert [each.reason for each in record_table.decisions(connection)] == ["7"]
    assert {path.name for path in tmp_path.glob("out*")} == {"out.jsonl", "out.db"}


@pytest.mark.parametrize("name", ["there.db", "there.jsonl", "out.csv", "nowhere/out.db"])
def test_an_export_writes_over_nothing_and_only_what_is_known(
    cli: CliRunner, own_home: Path, tmp_path: Path, name: str
) -> None:
    RecordFile(own_home / "state/records.db", RecordLimits(reserve_bytes=0)).close()
    for there in ("there.db", "there.jsonl"):
        (tmp_path / there).write_text("mine")
    result = cli.invoke(app, ["records", "--export", str(tmp_path / name)])
    assert result.exit_code == 1
    assert isinstance(result.exception, ConfigError)
    assert (tmp_path / "there.db").read_text() == "mine"


def test_without_any_record_the_verb_says_why(cli: CliRunner) -> None:
    result = cli.invoke(app, ["records"])
    assert result.exit_code == 1
    assert "there is no" in str(result.exception)


# --- failures ---


def test_failures_lists_what_was_lost_and_shows_one(cli: CliRunner, failures_folder: Path) -> None:
    lost(failures_folder, EngineLoss("no step for 61 s", "hang"), victim(refused=True), keep_content=False)
    (failures_folder / "000002-oom.json").write_text("torn")
    listed = cli.invoke(app, ["failures"])
    assert listed.exit_code == 0, listed.output
    assert "000001-hang" in listed.stdout
    assert "000002-oom.json cannot be used" in listed.stderr
    shown = cli.invoke(app, ["failures", "1"])
    assert "no step for 61 s" in shown.stdout
    assert "request 1: Generate on m, 3 tokens, 1 of at most 20 emitted; it is not tried again" in shown.stdout
    assert "Fatal Python error" in shown.stdout
    (as_json,) = json.loads(cli.invoke(app, ["failures", "--json"]).stdout)
    assert as_json["loss"]["cause"] == "hang"


def test_no_failure_is_said_in_words(cli: CliRunner) -> None:
    assert cli.invoke(app, ["failures"]).stdout == "No engine was lost, as far as is on record.\n"


# --- replay ---


async def spawn(on_exit: OnExit) -> EngineProcess:
    return await EngineProcess.spawn(on_exit, command=(sys.executable, str(FAKE_ENGINE)))


def replayed(folder: Path, first: int, loss: EngineLoss, *, keep_going: bool = False) -> int:
    """The status of two tries with the fake engine, which does as the `first` id of the prompt says."""
    message = msgspec.structs.replace(victim().message, prompt=[first, 5], grammar=None, emitted=[])
    lost(folder, loss, msgspec.structs.replace(victim(), message=message))
    bundle = read_bundle(find_bundle("1", folder))
    messages, _ = requests_of(bundle)
    return asyncio.run(
        try_again(bundle, messages, models_of(bundle, messages), times=2, keep_going=keep_going, spawn=spawn)
    )


LEFT = EngineLoss("the engine left with status 7", "left")
CRASHED = EngineLoss("the engine was ended by SIGSEGV", "crash")


@pytest.mark.parametrize(
    ("first", "loss", "status", "said"),
    [
        (1, LEFT, 0, "the engine lived, 20 tokens"),
        (2, LEFT, EXIT_SAME, "lost in the same way"),
        (2, CRASHED, EXIT_OTHER, "lost in another way"),
    ],
)
def test_replay_says_by_its_status_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: int, loss: EngineLoss, status: int, said: str
) -> None:
    assert replayed(tmp_path, first, loss) == status
    told = capsys.readouterr().out
    assert said in told
    # After a loss it goes on only when it is asked to.
    assert ("try 2 of 2" in told) == (status == 0)


def test_replay_goes_on_when_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(tmp_path, 2, LEFT, keep_going=True) == EXIT_SAME
    assert capsys.readouterr().out.count("lost in the same way") == 2


def test_replay_of_a_model_that_is_gone_says_which(cli: CliRunner, failures_folder: Path) -> None:
    lost(failures_folder, LEFT, victim())
    result = cli.invoke(app, ["replay", "1"])
    assert result.exit_code == 1
    assert isinstance(result.exception, ModelError)


def test_replay_of_what_is_not_there_names_what_is(cli: CliRunner) -> None:
    result = cli.invoke(app, ["replay", "7"])
    assert result.exit_code == 1
    assert "no bundle 7" in str(result.exception)


# --- support ---


def test_support_works_while_the_service_is_down_and_says_so(cli: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "out.tar.gz"
    result = cli.invoke(app, ["support", "--output", str(path)])
    assert result.exit_code == 0, result.output
    assert "The service did not answer" in result.stderr
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert "magnitude-support/doctor.json" in names
    assert "magnitude-support/README.txt" in names


def test_support_asks_the_running_service(cli: CliRunner, service: FakeService, tmp_path: Path) -> None:
    path = tmp_path / "out.tar.gz"
    result = cli.invoke(app, ["support", "-o", str(path), "--url", f"unix:{service.socket}"])
    assert result.exit_code == 0, result.output
    with tarfile.open(path) as archive:
        state = archive.extractfile("magnitude-support/state.json")
        assert state is not None
        assert json.load(state)["version"] == "9.9.9"


def test_support_that_cannot_be_written_says_where_else(cli: CliRunner, tmp_path: Path) -> None:
    result = cli.invoke(app, ["support", "-o", str(tmp_path / "nowhere/out.tar.gz")])
    assert result.exit_code == 1
    assert "cannot be written" in str(result.exception)
