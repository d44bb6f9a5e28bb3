"""Two models that generate, one always in memory and one on request, asked in turn."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import yaml
from started_service import RunningService

pytestmark = pytest.mark.models

CHAT = "smollm2-135m-instruct"
SECOND = "second-of-its-kind"
EMBEDDER = "all-minilm-l6-v2"
QUESTION = [{"role": "user", "content": "Name the capital of France."}]
KEEP_ALIVE_S = 2.0


@pytest.fixture(scope="module")
def service(magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("two-models")
    (home / "models").mkdir()
    for name in (CHAT, EMBEDDER):
        (home / "models" / name).symlink_to(magnitude_home / "models" / name)
    shutil.copytree(magnitude_home / "models" / CHAT, home / "models" / SECOND)
    # Only what is named: the chat model by its path, the others when they are asked for.
    settings = {
        "engine": {"model_path": str(home / "models" / CHAT)},
        "models": {"load": [], "keep_alive_s": KEEP_ALIVE_S},
    }
    (home / "magnitude.yaml").write_text(yaml.safe_dump(settings))
    running = RunningService(home)
    running.wait_ready()
    yield running
    running.stop()


@pytest.fixture
def client(service: RunningService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120)


def residency(service: RunningService) -> dict[str, str]:
    return {model["name"]: model["residency"] for model in service.state()["models"]}


def until_gone(service: RunningService, *names: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = residency(service)
        if all(found[name] == "absent" for name in names):
            return
        time.sleep(0.05)
    pytest.fail(f"still there: {found}", pytrace=False)


def answer(client: openai.OpenAI, model: str) -> str:
    reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=24)
    assert reply.model == model
    return reply.choices[0].message.content or ""


def test_models_asked_in_turn_all_answer_and_the_one_on_request_comes_and_goes(
    service: RunningService, client: openai.OpenAI
) -> None:
    assert residency(service) == {CHAT: "loaded", SECOND: "absent", EMBEDDER: "absent"}
    assert {model.id for model in client.models.list()} == {CHAT, SECOND, EMBEDDER}
    expected = answer(client, CHAT)
    assert "Paris" in expected

    # One after the other, then all at once, in the middle of a stream of the other model.
    assert [answer(client, model) for model in (SECOND, CHAT, SECOND, CHAT)] == [expected] * 4
    assert residency(service)[SECOND] == "loaded"

    until_gone(service, SECOND)
    second = next(model for model in service.state()["models"] if model["name"] == SECOND)
    assert second["kv_resident_bytes"] == 0
    assert service.state()["health"]["ready"]

    story = [{"role": "user", "content": "Tell a long story about a fox."}]
    stream = client.chat.completions.create(model=CHAT, messages=story, temperature=0, max_tokens=200, stream=True)
    next(iter(stream))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: answer(client, (SECOND, CHAT)[n % 2]), range(8)))
        vectors = pool.submit(client.embeddings.create, model=EMBEDDER, input=["Paris", "London"])
        assert len(vectors.result().data) == 2
    assert answers == [expected] * 8
    ends = [chunk.choices[0].finish_reason for chunk in stream if chunk.choices]
    assert ends[-1] in ("stop", "length")

    until_gone(service, SECOND, EMBEDDER)
    assert residency(service)[CHAT] == "loaded"
    figures = service.state()["figures"]
    assert all(figure["failed"] == 0 and figure["cancelled"] == 0 for figure in figures.values())
