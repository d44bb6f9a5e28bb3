"""Generations whose engine is killed at a chosen moment give the very ids that undisturbed ones give."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from struck_service import (
    CHARACTERS,
    CHUNK,
    CONTEXT,
    PATIENCE_S,
    After,
    Said,
    StruckService,
    answer,
    pieces,
    read,
    running,
    task,
    text_ids,
    the_end,
    tiny_chat_model,
    tokens,
    until,
)

from magnitude.config.kv import KvSettings
from magnitude.config.models import ModelsSettings
from magnitude.engine.protocol import GrammarSpec, PrefillProgress, Tokens
from magnitude.models.catalogue import open_folder
from magnitude.models.importing.adapter import import_adapter
from magnitude.models.sources import open_source
from magnitude.schedule.inference import GenerationTask
from tiny_adapters import random_pairs, write_peft

LONG = text_ids(200)
FRESH = {"keep_kv": False}  # computed from the first token, each time


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with two tiny decoders, one of which has an adapter."""
    folder = tmp_path_factory.mktemp("tiny")
    source = tiny_chat_model(folder / "models", folder)
    tiny_chat_model(folder / "models", folder, name="untied", golden="llama_untied")
    pairs = random_pairs(open_source(source), seed=3)
    import_adapter(write_peft(folder / "poet", pairs), open_folder(folder / "models" / "tiny"))
    return folder / "models"


@pytest.fixture
def home(models: Path, tmp_path: Path) -> Path:
    (tmp_path / "models").symlink_to(models)
    return tmp_path


def tried(home: Path, scenario: Callable[[StruckService], Awaitable[None]], **sections: object) -> None:
    async def run() -> None:
        async with running(home, **sections) as service:
            await scenario(service)

    asyncio.run(run())


async def struck(service: StruckService, wanted: GenerationTask, *when: Callable[[object], bool]) -> Said:
    """The answer with strikes, after it was checked against the one without."""
    undisturbed = await answer(service, wanted)
    before = service.strikes
    service.strike_when = list(when)
    said = await answer(service, wanted)
    assert service.strikes - before == len(when)
    await service.until_up(service.strikes)
    assert (said.ids, said.logprobs, said.end.reason) == (
        undisturbed.ids,
        undisturbed.logprobs,
        undisturbed.end.reason,
    )
    assert undisturbed.end.recoveries == 0
    return said


@pytest.mark.parametrize("sampled", [False, True])
def test_in_prefill_in_decode_and_at_the_last_token(home: Path, sampled: bool) -> None:
    async def scenario(service: StruckService) -> None:
        wanted = task(LONG, sampled=sampled, logprobs=2, **FRESH)
        for when in (pieces(1), pieces(12), tokens(1), tokens(9)):
            assert (await struck(service, wanted, when)).end.recoveries == 1
        # The engine may have said the rest by then, or everything.
        for when in (tokens(23), tokens(24), the_end()):
            await struck(service, wanted, when)

    tried(home, scenario)


def test_one_engine_after_the_other(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        wanted = task(LONG, sampled=True, **FRESH)
        # Early in the answer: on a busy machine an engine has said the rest of a short one by the time it is struck.
        said = await struck(service, wanted, pieces(5), pieces(4), tokens(3), tokens(1), tokens(2))
        assert said.end.recoveries == 5

    tried(home, scenario)


def test_with_a_spare_engine_that_has_the_models_already(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        for wanted in (task(LONG, sampled=True, **FRESH), task(LONG, model="tiny:poet", **FRESH)):
            for when in (pieces(8), tokens(9)):
                undisturbed = await answer(service, wanted)
                assert await service.supervisor.spare.ready(PATIENCE_S)
                spare = service.supervisor.spare_pid
                service.strike_when = [when]
                said = await answer(service, wanted)
                assert (said.ids, said.end.recoveries) == (undisturbed.ids, 1)
                assert service.supervisor.pid == spare
                assert service.supervisor.last_recovery is not None and service.supervisor.last_recovery.spare

    tried(home, scenario, engine={"spare": "hot"})


def test_while_a_shared_prefix_is_copied(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        shared = LONG[:120]
        first, second = task([*shared, *text_ids(20, 2)], 100), task([*shared, *text_ids(30, 3)])
        undisturbed = await answer(service, task(second.prompt, **FRESH))
        for delay_s in (0.0, 0.0, 0.001, 0.003):
            # The first one goes on in its slot, so that the second one has to copy from it.
            holder = await service.dispatcher.generate(first)
            await holder.next()
            follower = await service.dispatcher.generate(second)
            await asyncio.sleep(delay_s)
            restarts = service.supervisor.lifecycle.restarts
            service.strike()
            assert (await read(follower)).ids == undisturbed.ids
            await read(holder)
            await service.until_up(restarts + 1)
            await service.dispatcher.forget(None)

    tried(home, scenario)


def test_while_a_saved_conversation_is_read_back(home: Path) -> None:
    kv = KvSettings(saved_min_tokens=64)
    earlier = task(LONG, 40)
    later: list[int] = []

    async def save(service: StruckService) -> None:
        later.extend([*LONG, *(await answer(service, earlier)).ids, *text_ids(9, 4)])

    undisturbed: list[int] = []

    async def look(service: StruckService) -> None:
        await until(lambda: service.dispatcher.conversations.saved_bytes("tiny") > 0)
        undisturbed.extend((await answer(service, task(later, save_kv=False))).ids)

    async def scenario(service: StruckService) -> None:
        await until(lambda: service.dispatcher.conversations.saved_bytes("tiny") > 0)
        generation = await service.dispatcher.generate(task(later))
        await until(lambda: generation.restoring or generation.restored is not None)
        service.strike()
        said = await read(generation)
        assert said.end.cached_tokens > len(LONG)
        assert said.ids == undisturbed

    for step in (save, look, scenario):
        tried(home, step, kv=kv)


def test_within_a_grammar(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        grammar = GrammarSpec(kind="regex", text=r"(cat|dog|horse)(, [a-z]{3,5}){4}\.")
        wanted = task(LONG, 60, sampled=True, grammar=grammar, **FRESH)
        for when in (pieces(3), tokens(2), tokens(11)):
            said = await struck(service, wanted, when)
            text = "".join(CHARACTERS[token - 3] for token in said.ids if token != 2)
            assert text.startswith(("cat, ", "dog, ", "horse, ")) and text.endswith("."), text

    tried(home, scenario)


def test_with_an_adapter(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        plain = (await answer(service, task(LONG, **FRESH))).ids
        for when in (pieces(3), tokens(7)):
            said = await struck(service, task(LONG, model="tiny:poet", **FRESH), when)
            assert said.ids != plain

    tried(home, scenario)


def test_in_a_window_that_slides(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        # Longer than the slot: it slides twice, and the engine is lost before, between and behind.
        wanted = task(LONG, CONTEXT, sampled=True, overflow="slide", **FRESH)
        for count in (200, CONTEXT - len(LONG) + 40, CONTEXT - 3):
            said = await struck(service, wanted, tokens(count))
            assert len(said.ids) == CONTEXT

    tried(home, scenario)


@pytest.mark.models
def test_while_a_background_generation_is_paused_for_another_one(magnitude_home: Path, tmp_path: Path) -> None:
    # Not a tiny one: a generation that runs for less than five seconds is never paused.
    (tmp_path / "models").symlink_to(magnitude_home / "models")
    chat = {"model": "smollm2-135m-instruct", **FRESH}

    async def scenario(service: StruckService) -> None:
        low = task(text_ids(200), 1500, priority="background", **chat)
        high = task(text_ids(50, 5), 40, sampled=True, priority="interactive", **chat)
        expected = (await answer(service, high)).ids
        waits = await service.dispatcher.generate(low)
        ids = list((await waits.next()).ids)
        goes = await service.dispatcher.generate(high)
        service.strike_when = [lambda message: waits.paused and isinstance(message, Tokens)]
        assert (await read(goes)).ids == expected
        assert service.strike_when == []
        while len(ids) < 400 and (emission := await waits.next()).reason is None:
            ids += emission.ids
        waits.cancel("enough")
        await until(lambda: service.dispatcher.running == 0)
        undisturbed = (await answer(service, msgspec.structs.replace(low, max_new_tokens=len(ids)))).ids
        assert ids == undisturbed
        assert goes.recoveries == 1

    engine = {"max_batch_size": 1, "prefill_chunk_size": 128, "context_length": 2048}
    tried(tmp_path, scenario, engine=engine)


def test_with_two_models_and_one_of_them_on_request(home: Path, models: Path) -> None:
    async def scenario(service: StruckService) -> None:
        both = [task(LONG, 150, **FRESH), task(LONG, 150, model="untied", sampled=True, **FRESH)]
        expected = [(await answer(service, wanted)).ids for wanted in both]
        assert expected[0] != expected[1]
        for when in (pieces(5), tokens(60)):
            service.strike_when = [when]
            said = await asyncio.gather(*(answer(service, wanted) for wanted in both))
            assert [one.ids for one in said] == expected
            assert service.strike_when == []

    tried(
        home,
        scenario,
        engine={"model_path": str(models / "tiny")},
        models=ModelsSettings(load=[], keep_alive_s=600.0),
    )


def test_four_at_once_of_every_kind(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        wanted = [task(text_ids(40 + 30 * at, at + 1), 60, sampled=at % 2 > 0, **FRESH) for at in range(4)]
        expected = [(await answer(service, one)).ids for one in wanted]
        for when in (pieces(7), tokens(30), tokens(150)):
            service.strike_when = [when]
            said = await asyncio.gather(*(answer(service, one) for one in wanted))
            assert [one.ids for one in said] == expected

    tried(home, scenario)


def test_kv_that_is_not_there_any_more_is_computed_again(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        wanted = task(LONG, 40, sampled=True)
        undisturbed = await answer(service, wanted)
        assert undisturbed.end.recomputed_tokens == 0
        generation = await service.dispatcher.generate(wanted)
        first = [await generation.next() for _ in range(10)]
        service.strike()
        await until(lambda: generation.paused)
        assert generation.placement is not None
        plan = service.dispatcher.plan("tiny")
        assert plan.kv is not None
        plan.kv.release_slot(generation.placement.slot)  # header and contents
        rest = await read(generation)
        ids = [token for emission in first for token in emission.ids] + rest.ids
        assert ids == undisturbed.ids
        assert rest.end.recoveries == 1
        assert rest.end.recomputed_tokens > len(LONG)

    tried(home, scenario)


def test_what_was_in_the_slot_is_not_computed_again(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        said = await struck(service, task(LONG, 40, **FRESH), tokens(20))
        assert said.end.recomputed_tokens == 0
        # Lost in a prompt whose beginning was cached: that is still there as well.
        await answer(service, task(LONG))
        progress: list[PrefillProgress] = []

        def first_piece(message: object) -> bool:
            if isinstance(message, PrefillProgress):
                progress.append(message)
            return After(PrefillProgress)(message)

        service.strike_when = [first_piece]
        await answer(service, task([*LONG[:100], *text_ids(60, 9)]))
        assert service.strike_when == []
        assert progress[0].kept_tokens >= 100 - CHUNK

    tried(home, scenario)
