"""A service in this process whose engine is struck at the very moment that a test chooses, with tiny models."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from started_service import GOLDEN
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from magnitude.config import EngineSettings, ServerSettings, Settings
from magnitude.engine.protocol import Finished, PrefillProgress, SamplerSettings, Tokens, ToService
from magnitude.intake.app import build_app
from magnitude.intake.serve import serve
from magnitude.intake.sockets import open_sockets
from magnitude.models.importing.parent import import_model
from magnitude.paths import find_paths
from magnitude.schedule.inference import Emission, Generation, GenerationTask
from magnitude.service import Service
from magnitude.supervise.lifecycle import Phase

PATIENCE_S = 120.0  # a test that waits so long has failed
CONTEXT = 512
LONGEST = 2048  # context that the models are able to
CHUNK = 8  # of a prompt: long ones enter in many pieces
ENGINE = {"prefill_chunk_size": CHUNK, "context_length": CONTEXT, "speculation": "off"}
# Every token a character, as many as the golden models have ids.
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \"'{}[]:,.-?!|"
ENDLESS = {2: -100.0}  # without its end token each answer has the length that was asked for
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}|{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_chat_model(models_folder: Path, work: Path, *, name: str = "tiny", golden: str = "llama_tied") -> Path:
    """Import a tiny decoder that speaks in characters, ready for adapters. Returns its unpacked source."""
    source = work / f"source-{name}"
    shutil.copytree(GOLDEN / golden, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LONGEST}))
    byte_of = {" ": "Ġ"}
    ids = {byte_of.get(text, text): at for at, text in enumerate(["<unk>", "<s>", "</s>", *CHARACTERS])}
    ids |= {f"<{at}>": at for at in range(len(ids), config["vocab_size"])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(source / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (source / "tokenizer_config.json").write_text(json.dumps(special))
    import_model(source, name=name, models_folder=models_folder, lora=True)
    return source


class StruckService(Service):
    """Kills its engine when `strike_when` says so of something that the engine has just said."""

    def __init__(self, home: Path, **sections: Any) -> None:
        engine = msgspec.convert(ENGINE | sections.pop("engine", {}), EngineSettings)
        settings = Settings(engine=engine, server=ServerSettings(listen="127.0.0.1:0"), **sections)
        paths = find_paths({"MAGNITUDE_HOME": str(home)})
        for folder in (paths.state, paths.run):
            folder.mkdir(exist_ok=True)
        super().__init__(settings, paths)
        self.socket = paths.unix_socket
        self.paths = paths
        self.strike_when: list[Callable[[ToService], bool]] = []
        self.strikes = 0
        self._struck: int | None = None

    def _on_message(self, message: ToService) -> None:
        super()._on_message(message)
        # What a struck engine had said before still comes in.
        alive = self.supervisor.pid != self._struck
        if alive and self.strike_when and self.strike_when[0](message):
            del self.strike_when[0]
            self.strike()

    def strike(self) -> None:
        """End the engine now."""
        assert self.supervisor.pid is not None
        self._struck = self.supervisor.pid
        os.kill(self._struck, signal.SIGKILL)
        self.strikes += 1

    async def until_up(self, engines: int) -> None:
        """Until the first engine and `engines` more have come up."""
        await until(lambda: self.supervisor.lifecycle.phase is Phase.UP)
        await until(lambda: self.supervisor.lifecycle.restarts == engines)
        await until(lambda: self.supervisor.lifecycle.phase is Phase.UP)


@asynccontextmanager
async def running(home: Path, **sections: Any) -> AsyncIterator[StruckService]:
    """A service that is up, stopped at the end. Its API answers at `socket`."""
    service = StruckService(home, **sections)
    metrics = service.metrics()
    app = build_app(
        service.dispatcher, service.settings, texts=service.texts, metrics=metrics, records=service.recorder.store
    )
    sockets = open_sockets(service.settings.server, {}, run_folder=service.paths.run)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(app, sockets, server=service.settings.server, metrics=metrics, stop=stop))
    watch = asyncio.create_task(service.supervisor.run())
    keeping = asyncio.create_task(service.dispatcher.conversations.run())
    try:
        await until(lambda: service.supervisor.lifecycle.phase is Phase.UP)
        yield service
    finally:
        stop.set()
        await serving
        for task in (watch, keeping):
            task.cancel()
        await service.stop()


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not fact():
            await asyncio.sleep(0.002)


def client_of(service: StruckService) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(service.socket))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE_S)


# --- when ---


class After:
    """True at the `count`-th message of a kind."""

    def __init__(self, kind: type[ToService], count: int = 1) -> None:
        self._kind = kind
        self._left = count

    def __call__(self, message: ToService) -> bool:
        if isinstance(message, self._kind):
            self._left -= 1
        return self._left <= 0


def tokens(count: int) -> After:
    return After(Tokens, count)


def pieces(count: int) -> After:
    return After(PrefillProgress, count)


def the_end() -> After:
    return After(Finished)


# --- what is asked ---


def text_ids(count: int, seed: int = 1) -> list[int]:
    """A prompt that looks like nothing in particular."""
    return [3 + (seed * 7919 + at * at * 31 + at * seed) % len(CHARACTERS) for at in range(count)]


def task(prompt: list[int], new: int = 24, *, sampled: bool = False, **fields: Any) -> GenerationTask:
    sampler = SamplerSettings(
        temperature=0.9 if sampled else 0.0,
        seed=11,
        presence_penalty=0.3 if sampled else 0.0,
        repetition_penalty=1.1 if sampled else 1.0,
        logit_bias=dict(ENDLESS),
    )
    return GenerationTask(
        **{"request_key": "test", "model": "tiny", "sampler": sampler, "max_new_tokens": new}
        | fields
        | {"prompt": prompt}
    )


class Said(msgspec.Struct, frozen=True):
    ids: list[int]
    logprobs: list[Any]
    end: Emission


async def read(generation: Generation) -> Said:
    ids: list[int] = []
    logprobs: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while (emission := await generation.next()).reason is None:
            ids += emission.ids
            logprobs += emission.logprobs
    return Said(ids, logprobs, emission)


async def answer(service: Service, wanted: GenerationTask) -> Said:
    return await read(await service.dispatcher.generate(wanted))
