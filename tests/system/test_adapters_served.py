"""A base and its adapters, imported, listed and asked through the real service."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from started_service import GOLDEN, free_port
from tiny_service import TinyService
from tokenizers import Tokenizer, models, pre_tokenizers

from magnitude.models.importing.adapter import import_adapter
from magnitude.models.importing.parent import import_model
from magnitude.models.sources import open_source
from tiny_adapters import random_pairs, write_peft

PROMPT = "the quick brown fox jumps over the lazy dog"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose models folder holds a tiny Llama with the adapters `poet` and `coder`."""
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / "llama_tied", source)
    # As many as the model has ids, so that every token has a text.
    letters = {text: i for i, text in enumerate(["<unk>", "<s>", "</s>", *(string.printable.strip() + " ")[:77]])}
    tokenizer = Tokenizer(models.WordLevel(vocab=letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    home = tmp_path / "home"
    base = import_model(source, name="tiny", models_folder=home / "models", lora=True)
    for seed, name in enumerate(("poet", "coder")):
        pairs = random_pairs(open_source(source), seed=seed)
        import_adapter(write_peft(tmp_path / name, pairs), base)
    return home


@pytest.fixture
def url(home: Path) -> Iterator[str]:
    port = free_port()
    sections = {"models": {"aliases": {"gpt-4": "tiny:poet"}}, "engine": {"context_length": 64}}
    service = TinyService(home, sections=sections, listen=f"127.0.0.1:{port}")
    service.wait_ready(f"http://127.0.0.1:{port}")
    yield f"http://127.0.0.1:{port}"
    assert service.stop() == 0


def complete(url: str, model: str) -> dict[str, Any]:
    # Without the end token each answer is 16 tokens long.
    body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "logit_bias": {"2": -100}}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_adapters_are_served_over_their_base(url: str) -> None:
    listed = {model["id"]: model.get("parent") for model in httpx.get(f"{url}/v1/models").json()["data"]}
    assert listed == {"tiny": None, "tiny:coder": "tiny", "tiny:poet": "tiny"}
    names = ("tiny", "tiny:poet", "tiny:coder", "coder", "gpt-4")
    alone = {name: complete(url, name) for name in names}
    texts = {name: answer["choices"][0]["text"] for name, answer in alone.items()}
    assert len({texts[name] for name in ("tiny", "tiny:poet", "tiny:coder")}) == 3
    assert (texts["coder"], texts["gpt-4"]) == (texts["tiny:coder"], texts["tiny:poet"])
    # The same prompt again is found in the KV of the same adapter only.
    cached = {name: alone[name]["usage"]["prompt_tokens_details"]["cached_tokens"] for name in names}
    assert [cached[name] > 0 for name in names] == [False, False, False, True, True]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda name: complete(url, name)["choices"][0]["text"], names * 2))
    assert together == [texts[name] for name in names * 2]
    refused = httpx.post(f"{url}/v1/completions", json={"model": "tiny:nobody", "prompt": PROMPT})
    assert refused.status_code == 404
    assert "coder, poet" in refused.json()["error"]["hint"]
