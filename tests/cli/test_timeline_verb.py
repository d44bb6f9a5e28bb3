from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import msgspec
import pytest
from fake_service import FakeService
from typer.testing import CliRunner

from magnitude.board.boot import Clocks
from magnitude.cli.main import app
from magnitude.errors import ConfigError
from magnitude.feedback.record_file import RecordFile, RecordLimits
from magnitude.feedback.timeline import Timeline
from tests.feedback.record_samples import decision, row
from tests.feedback.test_timeline import decided, drawn


def test_the_running_service_is_asked(cli: CliRunner, service: FakeService) -> None:
    service.timeline = drawn([decided(120, what="decode: 2 threads to 1 thread", gain=0.2, delay_s=3.0)])
    url = f"unix:{service.socket}"
    result = cli.invoke(app, ["timeline", "--since", "30min", "--model", "m", "-n", "7", "--url", url])
    assert result.exit_code == 0, result.output
    assert service.asked == {"since_s": "1800.0", "limit": "7", "model": "m"}
    for text in (
        "decode: 2 threads to 1 thread",
        "20%",
        "3.0 s",
        "2 min 0 s",
        "1 decision and 0 tasks in the last 30min",
    ):
        assert text in result.stdout


def test_what_flapped_is_told_with_its_number(cli: CliRunner, service: FakeService) -> None:
    service.timeline = drawn([decided(5, source="power", what="full to saving", repeats=59)])
    result = cli.invoke(app, ["timeline", "--url", f"unix:{service.socket}"])
    assert "and 59 times before" in result.stdout


def write_records(home: Path) -> None:
    file = RecordFile(home / "state/records.db", RecordLimits(reserve_bytes=0))
    now = Clocks().now()
    old = msgspec.structs.replace(now, at_s=now.at_s - 7200, wall_s=now.wall_s - 7200)
    file.append([decision(1, when=old), decision(2, when=now), row(3, when=now)])
    file.close()


def test_the_file_is_read_while_no_service_runs(cli: CliRunner, own_home: Path) -> None:
    write_records(own_home)
    result = cli.invoke(app, ["timeline", "--json"])
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(result.stdout, type=Timeline)
    assert ([one.reason for one in found.decisions], len(found.tasks)) == (["2"], 1)
    longer = json.loads(cli.invoke(app, ["timeline", "--json", "--since", "1d"]).stdout)
    assert [one["reason"] for one in longer["decisions"]] == ["1", "2"]


def test_the_file_is_read_beside_a_service_that_writes(cli: CliRunner, own_home: Path) -> None:
    write_records(own_home)
    writer = sqlite3.connect(own_home / "state/records.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM decisions")
    result = cli.invoke(app, ["timeline", "--json"])
    writer.execute("ROLLBACK")
    writer.close()
    assert len(json.loads(result.stdout)["decisions"]) == 1


def test_a_picture_is_written_beside_the_table(cli: CliRunner, own_home: Path, tmp_path: Path) -> None:
    write_records(own_home)
    target = tmp_path / "out.svg"
    result = cli.invoke(app, ["timeline", "--plot", str(target)])
    assert result.exit_code == 0, result.output
    assert f"written: {target}" in result.stdout
    assert target.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("arguments", [("--since", "soon"), ("--since", "1 week"), ("--plot", "out.txt")])
def test_what_cannot_be_done_is_refused_before_anything_is_asked(cli: CliRunner, arguments: tuple[str, str]) -> None:
    result = cli.invoke(app, ["timeline", *arguments])
    assert result.exit_code == 1
    assert isinstance(result.exception, ConfigError)
