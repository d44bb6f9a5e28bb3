from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_service import FakeService
from hypothesis import given
from hypothesis import strategies as st

from magnitude.cli.client import (
    Address,
    ServiceRefused,
    ServiceUnreachable,
    candidates,
    chat_deltas,
    connect,
    refusal,
    sse_data,
)
from magnitude.config import ServerSettings, Settings
from magnitude.paths import find_paths

PERSON = find_paths({"HOME": "/home/p", "XDG_RUNTIME_DIR": "/run/user/7"}, uid=7)
SYSTEM = find_paths({}, uid=0)


OF_SYSTEM = ["unix:/run/magnitude/magnitude.sock", "unix:/run/magnitude/service/magnitude.sock"]


def test_a_person_looks_for_the_own_service_then_the_systems_sockets_then_tcp() -> None:
    assert [str(address) for address in candidates(Settings(), PERSON)] == [
        "unix:/run/user/7/magnitude/magnitude.sock",
        *OF_SYSTEM,
        "http://127.0.0.1:11500",
    ]
    assert [str(address) for address in candidates(Settings(), SYSTEM)] == [*OF_SYSTEM, "http://127.0.0.1:11500"]


def test_the_configuration_says_where_to_look() -> None:
    settings = Settings(server=ServerSettings(listen="[::1]:9", unix_socket="/tmp/x.sock"))
    found = [str(address) for address in candidates(settings, PERSON)]
    assert found == ["unix:/tmp/x.sock", *OF_SYSTEM, "http://[::1]:9"]
    closed = Settings(server=ServerSettings(listen="", unix_socket=""))
    assert candidates(closed, SYSTEM) == []


def test_a_given_address_is_the_only_one() -> None:
    assert candidates(Settings(), PERSON, "http://board:1") == [Address(url="http://board:1")]
    assert candidates(Settings(), PERSON, "unix:/a/b") == [Address(socket="/a/b")]


def test_no_service_is_an_error_that_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable) as error:
        connect(
            [Address(socket=str(tmp_path / "none.sock")), Address(url="http://127.0.0.1:1"), Address(url="nonsense")]
        )
    assert "none.sock" in error.value.message
    assert "magnitude serve" in error.value.hint


def test_the_first_address_that_answers_is_used(service: FakeService, tmp_path: Path) -> None:
    addresses = [Address(socket=str(tmp_path / "none.sock")), Address(socket=service.socket)]
    with connect(addresses) as client:
        assert client.address.socket == service.socket
        ready, said = client.readiness()
        assert (ready, said["ready"], said["reasons"]) == (True, True, [])


def test_a_service_that_is_not_ready_is_an_answer(service: FakeService) -> None:
    service.ready = False
    with connect([Address(socket=service.socket)]) as client:
        ready, said = client.readiness()
    assert not ready
    assert said["reasons"] == ["engine starting"]


def test_a_streamed_answer_arrives_in_pieces_with_its_end_and_usage(service: FakeService) -> None:
    with connect([Address(socket=service.socket)], api_key="k") as client:
        deltas = list(client.chat({"messages": []}))
    assert "".join(delta.text for delta in deltas) == "Paris."
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert deltas[-1].usage == {
        "prompt_tokens": 40,
        "completion_tokens": 2,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert service.requests[0]["stream"] is True


def test_a_refusal_keeps_the_services_words_code_and_hint(service: FakeService) -> None:
    service.error = (404, {"error": {"message": "no such model", "code": "model_not_found", "hint": "list them"}})
    with connect([Address(socket=service.socket)]) as client, pytest.raises(ServiceRefused) as error:
        list(client.chat({"messages": []}))
    assert (error.value.status, error.value.code, error.value.hint) == (404, "model_not_found", "list them")
    assert error.value.message == "no such model"


def test_a_stream_that_breaks_off_is_not_taken_for_an_answer(service: FakeService) -> None:
    service.break_off = True
    with connect([Address(socket=service.socket)]) as client, pytest.raises(ServiceRefused, match="broke off"):
        list(client.chat({"messages": []}))


def test_hanging_up_reaches_the_service(service: FakeService) -> None:
    service.hang_after = 1
    with connect([Address(socket=service.socket)]) as client:
        stream = client.chat({"messages": []})
        assert next(stream).text == "Par"
        stream.close()
        assert service.hung_up.wait(10)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b'{"detail":"x"}', b'{"error":"text"}', b"\xff", b'{"error":5}']
)
def test_an_error_without_the_envelope_is_still_an_error_with_its_status(content: bytes) -> None:
    error = refusal(502, content)
    assert error.status == 502
    assert "502" in error.message


def test_an_error_inside_a_stream_ends_it() -> None:
    lines = ['data: {"error": {"message": "engine down", "code": "engine_not_ready"}}', "", "data: [DONE]", ""]
    with pytest.raises(ServiceRefused, match="engine down"):
        list(chat_deltas(lines))


def test_broken_json_in_a_stream_is_an_error() -> None:
    with pytest.raises(ServiceRefused, match="not JSON"):
        list(chat_deltas(["data: {", ""]))


@pytest.mark.parametrize(
    ("lines", "data"),
    [
        (["data: a", "", "data: b", ""], ["a", "b"]),
        (["data: a", "data: b", ""], ["a\nb"]),
        ([": comment", "event: x", "id: 3", "data:a", ""], ["a"]),
        (["", "", "data:", ""], [""]),
        (["data: unfinished"], ["unfinished"]),
        (["data:  two spaces", ""], [" two spaces"]),
    ],
)
def test_server_sent_events_are_read_as_the_standard_says(lines: list[str], data: list[str]) -> None:
    assert list(sse_data(lines)) == data


@given(st.lists(st.text().filter(lambda text: text.isprintable())))
def test_any_deltas_survive_the_stream(pieces: list[str]) -> None:
    lines: list[str] = []
    for piece in pieces:
        lines += ["data: " + json.dumps({"choices": [{"delta": {"content": piece}}]}), ""]
    lines += ["data: [DONE]", ""]
    assert [delta.text for delta in chat_deltas(lines)] == pieces
