from __future__ import annotations

import builtins
from collections.abc import Iterator

import pytest
from fake_service import FakeService

from magnitude.cli.client import Address, ServiceClient, ServiceRefused
from magnitude.cli.run import Conversation, converse


@pytest.fixture
def chat(service: FakeService) -> Iterator[Conversation]:
    with ServiceClient(Address(socket=service.socket)) as client:
        yield Conversation(client, "default", None, {})


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Stand in for the person at the keyboard, who leaves with Ctrl-D at the end."""
    waiting = iter(lines)

    def read(prompt: str = "") -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(builtins, "input", read)


def test_each_turn_carries_the_ones_before(chat: Conversation, service: FakeService) -> None:
    chat.ask("one")
    chat.ask("two")
    assert [turn["content"] for turn in service.requests[1]["messages"]] == ["one", "Paris.", "two"]


def test_the_oldest_turns_go_when_the_conversation_is_too_long(chat: Conversation, service: FakeService) -> None:
    service.longest_conversation = 3
    for text in ("one", "two", "three"):
        assert chat.ask(text)
    assert [turn["content"] for turn in service.requests[-1]["messages"]] == ["two", "Paris.", "three"]


def test_a_single_question_that_is_too_long_is_refused_and_taken_back(
    chat: Conversation, service: FakeService
) -> None:
    service.longest_conversation = 0
    with pytest.raises(ServiceRefused):
        chat.ask("one")
    assert chat.turns == []


def test_commands_change_the_conversation(
    chat: Conversation, service: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(
        monkeypatch, "/help", "/model", "/model other", "/system Be brief.", "hello", "/nonsense", "", "/reset"
    )
    converse(chat)
    said = capsys.readouterr()
    assert "/reset" in said.out
    assert "tiny-chat" in said.out
    assert "unknown command /nonsense" in said.err
    (request,) = service.requests
    assert request["model"] == "other"
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert chat.turns == []


def test_a_refused_question_does_not_end_the_conversation(
    chat: Conversation, service: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.error = (429, {"error": {"message": "the queue is full", "hint": "come back"}})
    type_lines(monkeypatch, "hello", "/exit", "never read")
    converse(chat)
    assert "error: the queue is full\nhint: come back" in capsys.readouterr().err
