from __future__ import annotations

import json

from fake_service import FakeService, at
from typer.testing import CliRunner

from magnitude.cli.main import app


def test_recycle_says_which_engine_serves_now_and_what_went_on_with_it(cli: CliRunner, service: FakeService) -> None:
    result = cli.invoke(app, ["recycle", "--reason", "new weights", *at(service)])
    assert result.exit_code == 0, result.output
    assert result.stdout == "engine 4243 serves after 0.50 s\n"
    assert service.recycle_asked == [{"reason": "new weights"}]
    service.recycled = {**service.recycled, "open_requests": 1}
    assert cli.invoke(app, ["recycle", *at(service)]).stdout.endswith("; 1 open request went on with it\n")
    as_json = cli.invoke(app, ["recycle", "--json", *at(service)])
    assert json.loads(as_json.stdout) == service.recycled


def test_an_engine_that_is_not_there_in_time_is_no_success(cli: CliRunner, service: FakeService) -> None:
    service.recycled = {**service.recycled, "engine_pid": None, "took_s": 60.0}
    result = cli.invoke(app, ["recycle", *at(service)])
    assert result.exit_code == 1
    assert "magnitude ps" in result.stdout


def test_a_refusal_is_the_service_s_own(cli: CliRunner, service: FakeService) -> None:
    service.error = (503, {"error": {"message": "there is no engine to replace", "code": "engine_not_ready"}})
    result = cli.invoke(app, ["recycle", *at(service)])
    assert result.exit_code != 0
    assert "no engine to replace" in str(result.exception)
