"""`magnitude doctor --boot` and `magnitude update`: a service over a real socket, a stub of the slot tool."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from fake_service import FakeService, at, running
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from magnitude.cli.doctor import seconds
from magnitude.cli.main import app
from magnitude.errors import MagnitudeError
from magnitude.update.trial_file import RECORD

sys.path.insert(0, str(Path(__file__).parents[1] / "update"))

from stub_rauc import StubRauc


class BootService(FakeService):
    """Also completes and embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.started_s = time.monotonic()
        self.completes = True
        self.kept: list[str | None] = []  # type: ignore[assignment]

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    def _healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "uptime_s": round(time.monotonic() - self.started_s, 1)})

    def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "tiny-chat", "kind": "decoder"}]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.kept.append(request.headers.get("x-magnitude-keep"))
        if not self.completes:
            return JSONResponse({"error": {"message": "the engine was lost", "code": "engine_error"}}, 503)
        said: dict[str, Any] = {"choices": [{"logprobs": {"tokens": ["a"]}}], "usage": {"completion_tokens": 8}}
        return JSONResponse(said)


@pytest.fixture
def service() -> Iterator[BootService]:
    with tempfile.TemporaryDirectory() as short:
        fake = BootService()
        with running(fake, Path(short)):
            yield fake


class Device:
    """What `magnitude update` finds; the minute is a moment here."""

    def __init__(self, folder: Path, cli: CliRunner) -> None:
        self.stub = StubRauc(folder / "tool")
        self.data = folder / "data"
        self.data.mkdir()
        self.rebooted = folder / "rebooted"
        self._cli = cli

    def update(self, *arguments: str) -> Result:
        tool = ["--slot-tool", str(self.stub.path), "--record-folder", str(self.data)]
        return self._cli.invoke(app, ["update", *arguments, *tool])

    def check(self, url: str) -> Result:
        timing = ["--within", "0.01s", "--steady", "0.0001s", "--url", url]
        return self.update("check", *timing, "--reboot-command", f"touch {self.rebooted}")


@pytest.fixture
def device(tmp_path: Path, cli: CliRunner) -> Device:
    return Device(tmp_path, cli)


def test_a_boot_check_that_fails_says_why_and_ends_with_2(cli: CliRunner, service: BootService) -> None:
    service.completes = False
    result = cli.invoke(app, ["doctor", "--boot", "--within", "0.01s", *at(service)])
    assert result.exit_code == 2
    assert "the engine was lost" in result.output


def test_as_json_a_boot_check_tells_verdict_and_findings(cli: CliRunner, service: BootService) -> None:
    result = cli.invoke(app, ["doctor", "--boot", "--json", "--within", "0.01s", *at(service)])
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert report["verdict"]["passed"] is False
    assert [finding["level"] for finding in report["findings"][:2]] == ["ok", "error"]


def test_a_boot_check_asks_for_nothing_that_is_kept(cli: CliRunner, service: BootService) -> None:
    cli.invoke(app, ["doctor", "--boot", "--within", "0.01s", *at(service)])
    assert service.kept == ["no"]
    assert service.requests[0]["temperature"] == 0


def test_a_device_without_a_model_says_so_and_passes(cli: CliRunner) -> None:
    result = cli.invoke(app, ["doctor", "--boot"])
    assert result.exit_code == 0
    assert "There is no model on this device" in result.output


def test_a_check_that_passes_marks_the_slot_good(device: Device, service: BootService) -> None:
    result = device.check(f"unix:{service.socket}")
    assert result.exit_code == 0, result.output
    assert "Slot A is marked good" in result.output
    assert device.stub.asked == ["status mark-good rootfs.0"]
    shown = json.loads(device.update("status", "--json").stdout)
    assert shown["standing"] == "confirmed"


def test_a_check_that_fails_on_an_update_reboots_with_4_and_in_a_proved_slot_stays_with_3(
    device: Device, service: BootService
) -> None:
    url = f"unix:{service.socket}"
    device.check(url)
    service.completes = False
    assert device.check(url).exit_code == 3
    assert not device.rebooted.exists()
    assert device.update("install", "2.0").exit_code == 0
    device.stub.boot()
    assert device.check(url).exit_code == 4
    assert device.rebooted.exists()
    assert "fails, rebooted 1 times" in device.update("status").output


def test_an_update_during_a_trial_is_refused_because_it_would_overwrite_the_way_back(device: Device) -> None:
    result = device.update("install", "2.0")
    assert isinstance(result.exception, MagnitudeError)
    assert "fall back to" in result.exception.message
    assert device.stub.asked == []
    assert device.update("install", "2.0", "--force").exit_code == 0
    assert device.stub.asked == ["install 2.0"]


def test_a_system_without_slots_can_be_asked_and_not_updated(cli: CliRunner, tmp_path: Path) -> None:
    absent = ["--slot-tool", str(tmp_path / "absent"), "--record-folder", str(tmp_path)]
    assert "no slots" in cli.invoke(app, ["update", "status", *absent]).output
    assert isinstance(cli.invoke(app, ["update", "install", "x", *absent]).exception, MagnitudeError)


def test_the_record_lies_beside_the_slot_tools_own_state(device: Device, service: BootService) -> None:
    device.check(f"unix:{service.socket}")
    assert (device.data / RECORD).exists()


@pytest.mark.parametrize(("text", "value"), [("180", 180.0), ("180s", 180.0), ("3m", 180.0), ("0.5s", 0.5)])
def test_time_spans_are_read_with_and_without_their_unit(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "nan", "infs", "3h", "soon"])
def test_what_is_no_time_span_is_refused(cli: CliRunner, text: str) -> None:
    assert cli.invoke(app, ["doctor", "--boot", "--within", text]).exit_code == 2
