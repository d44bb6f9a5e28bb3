"""Conversations outlive what holds them: the engine's death costs nothing, a restart reads them from the disk."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_client import Agent, Answer, instructions, link_models, measured, said, until, write_settings
from started_service import RunningService

pytestmark = pytest.mark.models

Start = Callable[[], RunningService]


@pytest.fixture
def start(magnitude_home: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a service in the same home each time it is called; the one before must have been stopped."""
    link_models(tmp_path, magnitude_home)
    write_settings(tmp_path, kv={"saved_min_tokens": 64})
    started: list[RunningService] = []

    def begin() -> RunningService:
        started.append(RunningService(tmp_path))
        started[-1].wait_ready()
        return started[-1]

    yield begin
    for service in started:
        service.stop()


def saved_files(home: Path) -> list[Path]:
    return sorted((home / "state" / "kv").iterdir())


def magnitude_kv(home: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "magnitude.cli.main", "kv", *arguments]
    environ = {**os.environ, "MAGNITUDE_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def next_turn(before: list[dict[str, str]], answer: Answer) -> list[dict[str, str]]:
    return [*before, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "Go on."}]


def test_a_conversation_outlives_engine_and_service_but_no_damage_and_no_delete(start: Start, tmp_path: Path) -> None:
    service = start()
    agent, other = Agent(service, "first"), Agent(service, "second")
    messages = said("Name a colour.", system=instructions("memory", 20))
    first = agent.chat(messages)

    # The engine dies, the memory stays.
    os.kill(service.state()["health"]["engine_pid"], signal.SIGKILL)
    until(lambda: service.state()["health"]["engine_restarts"] == 1)
    messages = next_turn(messages, first)
    second = agent.chat(messages)
    assert second.cached_tokens >= first.prompt_tokens

    # What must not be stored is reused, and not stored.
    private = said("Keep this to yourself.", system=instructions("privacy", 20))
    assert agent.chat(private, store=False).cached_tokens == 0
    assert agent.chat(private, store=False).cached_tokens > 0
    other.chat(said("Name a city.", system=instructions("cities", 20)))
    assert service.stop() == 0
    files = saved_files(tmp_path)
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700

    # The service is started anew, and the next turn finds its beginning on the disk.
    service = start()
    agent, other = Agent(service, "first"), Agent(service, "second")
    messages = next_turn(messages, second)
    assert other.chat(messages).cached_tokens == 0
    third = agent.chat(messages)
    assert third.cached_tokens >= second.prompt_tokens
    assert measured(service, "magnitude_reused_tokens_total", source="disk") == third.cached_tokens
    assert third.headers["server-timing"].startswith("queue;dur=")
    assert third.text == agent.chat(messages, headers={"X-Magnitude-Keep": "no"}).text
    assert agent.chat(private).cached_tokens == 0
    assert service.stop() == 0

    # A flipped byte is noticed, and what it belongs to computed again.
    for file in saved_files(tmp_path):
        damaged = bytearray(file.read_bytes())
        damaged[-len(damaged) // 3] ^= 1
        file.write_bytes(damaged)
    service = start()
    agent = Agent(service, "first")
    again = agent.chat(messages)
    assert (again.cached_tokens, again.text) == (0, third.text)
    assert "checksum" in service.log.read_text()

    # Deleted is deleted, in memory and on disk.
    listed = json.loads(magnitude_kv(tmp_path, "list", "--json"))
    assert {(one["owner"], one["where"]) for one in listed} >= {("first", "memory"), ("second", "disk")}
    assert "colour" not in json.dumps(listed)
    assert f"deleted {len(listed)} conversations" in magnitude_kv(tmp_path, "delete", "--yes")
    assert json.loads(magnitude_kv(tmp_path, "list", "--json")) == []
    assert saved_files(tmp_path) == []
    assert agent.chat(messages).cached_tokens == 0
