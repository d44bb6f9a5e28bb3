"""Answers of the API whose engine is killed under way read as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import shutil
import string
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from started_service import GOLDEN
from struck_service import After, StruckService, client_of, running, tiny_chat_model, tokens, until
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel

from bench.kill_requests import Setting
from bench.kill_requests import requests as make_requests
from bench.kills import Campaign, undisturbed
from bench.service_process import running_service
from magnitude.engine.protocol import PrefillProgress, Ranked, Vectors
from magnitude.models.importing.parent import import_model

PROMPT = "What does the keeper do when the lamp goes out?"
# Neither the end nor a token without text.
BIAS = {"0": -100, "1": -100, "2": -100}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder and a tiny embedder."""
    folder = tmp_path_factory.mktemp("tiny-pair")
    tiny_chat_model(folder / "models", folder)
    import_model(embedder(folder / "embedder"), name="tiny-embedder", models_folder=folder / "models")
    return folder / "models"


def embedder(folder: Path) -> Path:
    """The golden embedder with a tokenizer of single characters."""
    golden = GOLDEN / "bert_embedder"
    shutil.copytree(golden, folder)
    size = json.loads((golden / "config.json").read_text())["vocab_size"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *string.ascii_lowercase, *string.digits]
    words += [f"w{number}" for number in range(size - len(words))]
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words[:size])}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tried(models: Path, home: Path, scenario: Callable[[StruckService, httpx.AsyncClient], Awaitable[None]]) -> None:
    (home / "models").symlink_to(models)

    async def run() -> None:
        async with running(home) as service, client_of(service) as client:
            await scenario(service, client)

    asyncio.run(run())


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    text, done = "", False
    async with client.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
            done = done or line == "data: [DONE]"
    assert done
    return text


def test_a_stop_string_is_found_whose_parts_come_from_two_engines(models: Path, tmp_path: Path) -> None:
    async def scenario(service: StruckService, client: httpx.AsyncClient) -> None:
        body: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 60, "temperature": 1.0, "seed": 4}
        body["logit_bias"] = BIAS
        whole = (await ask(client, "/v1/completions", body)).json()["choices"][0]["text"]
        assert len(whole) == 60
        stop = whole[30:34]
        before = whole[: whole.index(stop)]
        for count, way in ((len(before) + 1, "whole"), (len(before) + 2, "streamed"), (3, "streamed")):
            service.strike_when = [tokens(count)]
            if way == "whole":
                reply = await ask(client, "/v1/completions", body | {"stop": [stop]})
                text = reply.json()["choices"][0]["text"]
                assert reply.json()["choices"][0]["finish_reason"] == "stop"
            else:
                text = await streamed(client, "/v1/completions", body | {"stop": [stop]})
            assert text == before
            assert service.strike_when == []
            await service.until_up(service.strikes)

    tried(models, tmp_path, scenario)


def test_a_pipeline_goes_on_in_each_of_its_stages(models: Path, tmp_path: Path) -> None:
    async def scenario(service: StruckService, client: httpx.AsyncClient) -> None:
        body = {
            "query": PROMPT,
            "documents": ["The lamp goes out.", "The keeper sleeps.", "A ship comes.", "It rains."],
            "top_k": 2,
            "generate": {"temperature": 0, "max_tokens": 40, "logit_bias": BIAS},
        }
        expected = said((await ask(client, "/v1/magnitude/pipeline", body)).json())
        for when in (After(Ranked), After(PrefillProgress), tokens(11)):
            service.strike_when = [when]
            assert said((await ask(client, "/v1/magnitude/pipeline", body)).json()) == expected
            assert service.strike_when == []
            await service.until_up(service.strikes)

    tried(models, tmp_path, scenario)


def said(answer: dict[str, Any]) -> tuple[list[int], str]:
    chosen = [document["index"] for document in answer["pipeline"]["documents"]]
    return chosen, answer["choices"][0]["message"]["content"]


def test_texts_are_embedded_again_when_their_engine_is_lost(models: Path, tmp_path: Path) -> None:
    async def scenario(service: StruckService, client: httpx.AsyncClient) -> None:
        body = {"model": "tiny-embedder", "input": [PROMPT[at:] for at in range(0, 40, 2)]}
        expected = (await ask(client, "/v1/embeddings", body)).json()["data"]
        asked = asyncio.create_task(ask(client, "/v1/embeddings", body))
        await until(lambda: service.dispatcher.running > 0 or asked.done())
        service.strike()
        found = (await asked).json()["data"]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert one["embedding"] == pytest.approx(other["embedding"], abs=1e-5)
        service.strike_when = [After(Vectors)]
        await ask(client, "/v1/embeddings", body)

    tried(models, tmp_path, scenario)


def test_header_and_state_tell_what_a_lost_engine_cost(models: Path, tmp_path: Path) -> None:
    async def scenario(service: StruckService, client: httpx.AsyncClient) -> None:
        body: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
        body["logit_bias"] = BIAS
        calm = await ask(client, "/v1/completions", body)
        assert "x-magnitude-recoveries" not in calm.headers
        kv = service.dispatcher.plan("tiny").kv
        assert kv is not None

        restarts = service.supervisor.lifecycle.restarts
        service.strike_when = [tokens(12)]
        asked = asyncio.create_task(ask(client, "/v1/completions", body))
        await until(lambda: service.supervisor.lifecycle.restarts > restarts)
        for slot in range(kv.layout.slots):  # the old engine is gone, the new one has not looked yet
            kv.release_slot(slot)
        struck = await asked
        assert struck.json()["choices"] == calm.json()["choices"]
        assert int(struck.headers["x-magnitude-recomputed-tokens"]) > len(PROMPT)
        assert struck.headers["x-magnitude-recoveries"] == "1"
        state = (await client.get("/v1/magnitude/state")).json()["engine_last_recovery"]
        assert state["open_requests"] == 1
        assert min(state["start_s"], state["load_s"], state["first_step_s"]) >= 0.0

    tried(models, tmp_path, scenario)


def test_a_campaign_of_kills_spoils_no_answer(models: Path) -> None:
    setting = Setting(chat="tiny", eos=(2,), embedder="tiny-embedder", instructed=False, scale=0.25, answers=6.0)
    wanted = make_requests(setting, seed=3, count=40, distinct=16)
    with running_service(models, {"engine": {"prefill_chunk_size": 8, "context_length": 2048}}) as service:
        expected = undisturbed(service.port, wanted)
        campaign = Campaign(
            service,
            wanted,
            expected,
            kills=8,
            seed=3,
            strikes=("decode", "load", "prefill", "start", "decode", "last token", "load", "prefill"),
            patience_s=0.5,
        )
        result = campaign.run()
    assert result.shown == ()
    assert (result.right, result.errors, result.wrong) == (40, 0, 0)
    assert result.kills >= 4
    assert result.recovered > 0
