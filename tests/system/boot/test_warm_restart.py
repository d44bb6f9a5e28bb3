"""Conversations outlive the service: their memory stays with systemd while the next one starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from booted_board import SERVICE, Board
from nspawn import until

pytestmark = [pytest.mark.system, pytest.mark.models]

RULES = " ".join(f"Rule {number} says that an answer about ships stays short." for number in range(12))
# Nothing is saved to files, so that what is warm can only have been in memory.
SETTINGS = {"engine": {"speculation": "off"}, "kv": {"save": False}}


@pytest.fixture(scope="module")
def board(root: Path, chat_model: Path) -> Iterator[Board]:
    with Board(root, settings=SETTINGS, models=[chat_model]) as board:
        board.wait_ready()
        yield board


def turn(board: Board, messages: list[dict[str, str]]) -> tuple[str, dict[str, Any]]:
    answer = board.chat("", messages=messages)
    return answer["choices"][0]["message"]["content"], answer["usage"]


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_conversation_goes_on_warm_behind_a_restart_and_a_crash_of_the_service(board: Board, how: str) -> None:
    messages = [{"role": "system", "content": f"{how}: {RULES}"}, {"role": "user", "content": "Name a ship."}]
    said, usage = turn(board, messages)
    assert usage["prompt_tokens_details"]["cached_tokens"] < 20
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Name another one."}]
    main = board.main_pid
    if how == "restart":
        board.run("systemctl", "restart", SERVICE)
    else:
        board.kill("KILL", main)
    until(lambda: board.main_pid not in (0, main), within_s=60, what="the next service")
    board.wait_ready()
    _, after = turn(board, messages)
    assert after["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 1


def test_the_memory_of_conversations_is_given_back_at_a_stop(board: Board) -> None:
    assert int(board.show(SERVICE, "NFileDescriptorStore")) > 0
    board.run("systemctl", "stop", SERVICE)
    assert int(board.show(SERVICE, "NFileDescriptorStore")) == 0
    board.run("systemctl", "start", SERVICE)
    board.wait_ready()
