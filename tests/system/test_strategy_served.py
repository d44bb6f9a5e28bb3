"""The strategy loop in a real service: answers stay the same while it switches, and what it knows outlasts engines
and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from struck_service import (
    StruckService,
    answer,
    client_of,
    read,
    running,
    task,
    text_ids,
    tiny_chat_model,
    tokens,
    until,
)

from magnitude.config.policy import PolicySettings
from magnitude.engine.protocol import Steps, ToService
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.candidates import session_on
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Choice, Entry, Learned
from magnitude.policy.pinned import Pinned
from magnitude.policy.situation import key_of

MODEL = "tiny"
LONG = text_ids(200)
FRESH = {"keep_kv": False}  # computed from the first token, each time
# Nothing is tried by the loop itself: these tests say what is to run when.
QUIET = PolicySettings(explore="off")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_chat_model(folder / "models", folder)
    return folder / "models"


@pytest.fixture
def home(models: Path, tmp_path: Path) -> Path:
    (tmp_path / "models").symlink_to(models)
    return tmp_path


def served(home: Path, scenario: Callable[[StruckService], Awaitable[None]], **sections: object) -> None:
    """With a view of the board, as a service of its own has it."""

    async def run() -> None:
        async with running(home, **sections) as service:
            board = asyncio.create_task(service.board.run())
            try:
                await scenario(service)
            finally:
                board.cancel()

    asyncio.run(run())


class Ran:
    """Sessions that the engine has run decode steps by."""

    def __init__(self, service: StruckService) -> None:
        self.sessions: list[SessionSpec | None] = []
        service.strike_when.append(self)

    def __call__(self, message: ToService) -> bool:
        if isinstance(message, Steps):
            self.sessions += [group.session for group in message.groups if group.kind == "decode"]
        return False


async def other_session(service: StruckService) -> SessionSpec:
    """One with another number of threads than the model's own."""
    strategies = service.strategies
    assert strategies is not None
    await until(lambda: strategies.running(MODEL) is not None and service.board_sight() is not None)
    board, own = service.board_sight(), strategies.learned()[MODEL]
    assert board is not None
    assert own.binding.model == MODEL
    plan = service.dispatcher.plan(MODEL)
    threads = plan.provision.threads
    return session_on(board, 1 if threads > 1 else 2, SessionSpec(threads=threads))


async def pin(service: StruckService, session: SessionSpec | None) -> None:
    strategies = service.strategies
    assert strategies is not None
    binding = strategies.learned()[MODEL].binding
    pinned = Pinned(board=binding.board, model=MODEL, decode=session, prefill=session) if session else None
    assert strategies.dumps.pin(binding, pinned)
    await strategies.reread(MODEL, "pinned" if session else "unpinned")


def in_force(service: StruckService) -> SessionSpec:
    assert service.strategies is not None
    strategy = service.strategies.strategy_of(MODEL)
    assert strategy is not None
    return strategy.decode


def test_answers_stay_the_same_while_it_switches_and_when_its_engine_is_killed(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        other = await other_session(service)
        wanted = task(LONG, 250, sampled=True, logprobs=1, **FRESH)
        undisturbed = await answer(service, wanted)
        ran = Ran(service)
        generation = await service.dispatcher.generate(wanted)
        reading = asyncio.create_task(read(generation))
        await pin(service, other)
        assert (await reading).ids == undisturbed.ids
        await until(lambda: in_force(service) == other)
        for _ in range(3):  # back and forth in the midst of answers
            reading = asyncio.create_task(answer(service, wanted))
            await asyncio.sleep(0.05)
            await pin(service, None)
            await asyncio.sleep(0.05)
            await pin(service, other)
            said = await reading
            assert (said.ids, said.logprobs) == (undisturbed.ids, undisturbed.logprobs)
        await until(lambda: other in ran.sessions and None in ran.sessions)

        service.strike_when = [tokens(20)]
        said = await answer(service, wanted)
        assert (said.ids, said.end.recoveries) == (undisturbed.ids, 1)
        await until(lambda: in_force(service) == other)  # in the new engine, too
        again = Ran(service)
        assert (await answer(service, wanted)).ids == undisturbed.ids
        await until(lambda: other in again.sessions)

    served(home, scenario, policy=QUIET)


def test_a_second_start_goes_by_what_the_first_one_learned(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    learned: list[Learned] = []

    async def learns(service: StruckService) -> None:
        other = await other_session(service)
        await pin(service, other)
        await until(lambda: in_force(service) == other)
        await pin(service, None)
        assert service.strategies is not None
        at = service.strategies.situation(MODEL)
        assert at is not None
        key = key_of("decode", at)
        known = service.strategies.learned()[MODEL]
        chosen = Entry(part="decode", key=key, chosen=Choice(session=other), origin="imported")
        learned.append(msgspec.structs.replace(known, entries=(chosen,)))

    async def goes_on(service: StruckService) -> None:
        [entry] = learned[0].entries
        await other_session(service)
        await until(lambda: in_force(service) == entry.chosen.session)
        assert service.strategies is not None
        assert service.strategies.learned()[MODEL].verified == learned[0].verified

    with caplog.at_level("INFO", logger="magnitude.policy"):
        served(home, learns, policy=QUIET)
        assert "session agrees with the model's own" in caplog.text
        dumps = Dumps(home / "state")
        kept = dumps.load(learned[0].binding).learned
        assert kept is not None
        assert kept.verified == learned[0].verified
        assert dumps.replace(learned[0])
        caplog.clear()
        served(home, goes_on, policy=QUIET)
        assert "session prepared" in caplog.text
        assert "session agrees" not in caplog.text  # it was compared before


def test_without_the_loop_everything_runs_as_configured_and_is_shown_so(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        assert service.strategies is None
        async with client_of(service) as client:
            state = (await client.get("/v1/magnitude/state")).json()
        shown = state["strategy"][MODEL]
        assert not shown["on"]
        assert shown["strategy"]["prefill_chunk"] == service.settings.engine.prefill_chunk_size
        await answer(service, task(LONG, 3))
        assert not (home / "state" / "strategies").exists()

    served(home, scenario, engine={"self_optimize": False})


def test_what_was_decided_is_in_the_timeline_and_tasks_name_what_they_ran_by(home: Path) -> None:
    async def scenario(service: StruckService) -> None:
        other = await other_session(service)
        await answer(service, task(LONG, 3, **FRESH))
        await pin(service, other)
        await until(lambda: in_force(service) == other)
        await answer(service, task(LONG, 3, **FRESH))
        async with client_of(service) as client:
            timeline = (await client.get("/v1/magnitude/timeline?since_s=600")).json()
            rows = (await client.get("/v1/magnitude/records?limit=2")).json()["data"]
        decided = [(one["source"], one["kind"]) for one in timeline["decisions"] if one["model"] == MODEL]
        assert decided[0] == ("strategy", "start")
        assert ("strategy", "pinned") in decided
        [lane] = [lane for lane in timeline["lanes"] if (lane["model"], lane["part"]) == (MODEL, "decode")]
        assert lane["spans"][-1]["choice"] == other.session_id
        after, before = (row["circumstances"]["strategy"]["decode"] for row in rows)
        assert msgspec.convert(after, SessionSpec) == other
        assert before != after
        assert all(row["circumstances"]["chosen"]["task"] == "generate" for row in rows)

    served(home, scenario, policy=QUIET)
