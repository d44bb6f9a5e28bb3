import json
import logging

import pytest
from service_under_test import InProcess

from magnitude.config import LogSettings, Settings

SECRET = "the vault opens at nine"


def content_lines(caplog: pytest.LogCaptureFixture) -> list[dict]:
    return [record.fields for record in caplog.records if record.getMessage() == "content"]


def ask(service: InProcess, **fields: object) -> str:
    reply = service.chat(messages=[{"role": "user", "content": SECRET}], **fields)
    assert reply.status_code == 200
    return reply.text


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_and_answers_stay_out_of_the_log(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.DEBUG)
    ask(InProcess(), stream=stream)
    assert content_lines(caplog) == []
    assert not any(SECRET in str(vars(record)) for record in caplog.records if record.name.startswith("magnitude"))


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_and_answers_are_logged_once_each_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    service = InProcess(Settings(log=LogSettings(content=True)))
    ask(service, stream=stream)
    (line,) = content_lines(caplog)
    assert SECRET in line["prompt"]
    assert line["answer"] == json.loads(ask(InProcess()))["choices"][0]["message"]["content"]
    assert line["request"].startswith("req-")
