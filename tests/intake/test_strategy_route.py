"""Learned strategies over HTTP: shown, changed by an admin, taken up at once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from service_under_test import InProcess

from fake_strategies import FakeStrategies, learned_of
from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.engine.session_spec import SessionSpec
from magnitude.persist import sealed
from magnitude.policy.dump_exchange import exported
from magnitude.policy.learned import Choice, Entry, Rejected
from magnitude.policy.trained import SCHEMA, ModelTable, Proof, Trained

ROUTE = "/v1/magnitude/strategy"
KEYS = [
    ApiKey(name="root", sha256=hashlib.sha256(b"root").hexdigest(), admin=True),
    ApiKey(name="ann", sha256=hashlib.sha256(b"ann").hexdigest()),
]


@pytest.fixture
def strategies(tmp_path: Path) -> FakeStrategies:
    return FakeStrategies(tmp_path, "tiny-chat", "tiny-embed")


@pytest.fixture
def service(strategies: FakeStrategies) -> InProcess:
    found = InProcess(Settings(server=ServerSettings(api_keys=KEYS)), strategies=strategies)
    found.headers = {"Authorization": "Bearer root"}
    return found


def test_what_was_learned_and_what_runs_is_shown_by_model(service: InProcess, strategies: FakeStrategies) -> None:
    body = service.call("GET", ROUTE).json()
    assert [one["model"] for one in body["data"]] == ["tiny-chat", "tiny-embed"]
    (chat,) = service.call("GET", f"{ROUTE}?model=default").json()["data"]
    assert chat["model"] == "tiny-chat"
    assert chat["learned"]["binding"]["ort_version"] == "1.32.0"
    assert chat["running"]["in_words"].startswith("prompts 2 threads")
    assert (chat["generation"], chat["pinned"]) == (0, None)
    strategies.dumps.save(learned_of("tiny-chat"))
    assert service.call("GET", f"{ROUTE}?model=tiny-chat").json()["data"][0]["generation"] == 1


def test_only_an_admin_may(service: InProcess, strategies: FakeStrategies) -> None:
    service.headers = {"Authorization": "Bearer ann"}
    assert service.call("GET", ROUTE).status_code == 403
    assert service.post(ROUTE, {"hold": 5}).status_code == 403
    assert strategies.held == []


def test_holding_says_for_how_long_and_has_a_bound(service: InProcess, strategies: FakeStrategies) -> None:
    assert service.post(ROUTE, {"hold": 30}).json() == {"held_s": 30.0}
    assert service.post(ROUTE, {"hold": 0}).json() == {"held_s": 0.0}
    for wrong in (-1, 1e6, "long"):
        assert service.post(ROUTE, {"hold": wrong}).status_code == 400
    assert strategies.held == [30.0, 0.0]


def test_an_import_is_taken_up_at_once_and_what_there_was_stays_as_a_generation(
    service: InProcess, strategies: FakeStrategies
) -> None:
    text = exported(learned_of("tiny-chat", samples=7), 3).decode()
    reply = service.post(ROUTE, {"import": text})
    assert reply.status_code == 200
    assert reply.json() == {
        "models": ["tiny-chat"],
        "change": "imported",
        "text": "tiny-chat: 1 situation imported as it is",
    }
    assert strategies.reread_models == ["tiny-chat"]
    assert strategies.known["tiny-chat"].samples == 7
    assert strategies.known["tiny-chat"].entries[0].origin == "imported"
    before = service.call("GET", f"{ROUTE}?model=tiny-chat&generation=1").json()
    assert before["learned"]["samples"] == 90


def test_an_import_of_another_binding_is_refused_unless_it_is_a_hint(
    service: InProcess, strategies: FakeStrategies
) -> None:
    text = exported(learned_of("tiny-chat", ort_version="1.31.0"), 3).decode()
    refused = service.post(ROUTE, {"import": text})
    assert refused.status_code == 409
    assert "ONNX Runtime 1.31.0 -> 1.32.0" in refused.json()["error"]["message"]
    assert "--as-prior" in refused.json()["error"]["hint"]
    assert strategies.reread_models == []
    assert service.post(ROUTE, {"import": text, "as_prior": True}).status_code == 200
    assert {each.weight for each in strategies.known["tiny-chat"].entries[0].evidence} == {1.0}


def test_a_dump_of_a_model_that_is_not_here_needs_to_be_told_which_one(service: InProcess) -> None:
    text = exported(learned_of("zebra"), 1).decode()
    assert service.post(ROUTE, {"import": text}).status_code == 404
    assert service.post(ROUTE, {"import": text, "model": "tiny-chat"}).status_code == 409
    assert service.post(ROUTE, {"import": text, "model": "tiny-chat", "as_prior": True}).status_code == 200


def test_a_trained_table_is_installed_for_every_model_that_it_fits(
    service: InProcess, strategies: FakeStrategies
) -> None:
    chosen = Choice(session=SessionSpec(threads=1))
    table = ModelTable(
        board="pi5-bare",
        model="tiny-chat",
        model_hash="t" * 64,
        entries=(Entry(part="decode", key="rows=9 cores=4 clock=0.9", chosen=chosen, origin="trained"),),
    )
    trained = Trained(tables=(table,), proof=Proof(tasks=1, files=1, boards=("pi5-bare",), tolerance=0.02))
    reply = service.post(ROUTE, {"import": sealed(trained, schema=SCHEMA).decode()})
    assert reply.status_code == 200
    assert strategies.reread_models == ["tiny-chat", "tiny-embed"]
    assert [entry.origin for entry in strategies.known["tiny-chat"].entries] == ["measured", "trained"]
    assert strategies.dumps.trained() == trained


def test_a_trained_table_is_taken_away_with_what_was_not_measured(
    service: InProcess, strategies: FakeStrategies
) -> None:
    del strategies.known["tiny-embed"]
    strategies.known["zebra"] = learned_of("zebra")  # other weights
    before = strategies.known["tiny-chat"]
    chosen = Choice(session=SessionSpec(threads=1))
    table = ModelTable(
        board="pi5-bare",
        model="tiny-chat",
        model_hash="t" * 64,
        entries=(Entry(part="decode", key="rows=9 cores=4 clock=0.9", chosen=chosen, origin="trained"),),
        rejected=(Rejected(part="decode", key="rows=8 cores=4 clock=0.9", choice=chosen, reason="slow"),),
    )
    trained = Trained(tables=(table,), proof=Proof(tasks=1, files=1, boards=("pi5-bare",), tolerance=0.02))
    assert service.post(ROUTE, {"reset": True, "trained": True}).status_code == 400  # there is none
    assert service.post(ROUTE, {"import": sealed(trained, schema=SCHEMA).decode()}).status_code == 200
    assert len(strategies.known["tiny-chat"].rejected) == 2
    assert service.post(ROUTE, {"reset": True, "trained": True, "model": "tiny-chat"}).status_code == 400
    reply = service.post(ROUTE, {"reset": True, "trained": True})
    assert reply.json()["models"] == ["tiny-chat"]
    assert "1 situation of it forgotten" in reply.json()["text"]
    assert strategies.dumps.trained() is None
    after = strategies.known["tiny-chat"]
    assert (after.entries, after.rejected) == (before.entries, before.rejected)


def test_a_reset_forgets_one_model_or_all(service: InProcess, strategies: FakeStrategies) -> None:
    assert service.post(ROUTE, {"reset": True, "model": "tiny-chat"}).status_code == 200
    assert strategies.known["tiny-chat"].entries == ()
    assert strategies.known["tiny-embed"].entries
    assert service.post(ROUTE, {"reset": True}).status_code == 400
    assert service.post(ROUTE, {"reset": True, "all": True}).json()["models"] == ["tiny-chat", "tiny-embed"]
    assert strategies.known["tiny-embed"].entries == ()


def test_pins_add_up_until_they_are_taken_back(service: InProcess, strategies: FakeStrategies) -> None:
    binding = strategies.known["tiny-chat"].binding
    assert service.post(ROUTE, {"model": "tiny-chat", "pin": {"decode": {"threads": 2}}}).status_code == 200
    reply = service.post(ROUTE, {"model": "tiny-chat", "pin": {"chunk": 64}})
    assert reply.json()["text"] == "tiny-chat: fixed are answers by 2 threads, prompts in pieces of 64"
    pinned = strategies.dumps.pinned(binding)
    assert pinned is not None
    assert (pinned.decode, pinned.chunk) == (SessionSpec(threads=2), 64)
    assert service.post(ROUTE, {"model": "tiny-chat", "unpin": True}).status_code == 200
    assert strategies.dumps.pinned(binding) is None
    assert strategies.reread_models == ["tiny-chat"] * 3
    assert strategies.dumps.kept(strategies.dumps.folder_of(binding)).dump is None  # a pin saves nothing


def test_changes_one_after_the_other_are_one_generation_each(service: InProcess, strategies: FakeStrategies) -> None:
    folder = strategies.dumps.folder_of(strategies.known["tiny-chat"].binding)
    other = exported(learned_of("tiny-chat", samples=7), 3).decode()

    def generation_after(body: dict[str, object]) -> int:
        assert service.post(ROUTE, {"model": "tiny-chat", **body}).status_code == 200
        dump = strategies.dumps.kept(folder).dump
        return dump.generation if dump is not None else 0

    assert generation_after({"import": other}) == 2  # what there was became the first
    assert generation_after({"import": other}) == 2
    assert generation_after({"reset": True}) == 3
    assert generation_after({"reset": True}) == 3
    for chunk in (64, 128):
        assert generation_after({"pin": {"chunk": chunk}}) == 3
    assert generation_after({"unpin": True}) == 3
    strategies.known["tiny-chat"] = learned_of("tiny-chat", samples=8)
    assert generation_after({"import": other}) == 4


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"hold": 1, "reset": True},
        {"pin": {"chunk": 64}},
        {"model": "tiny-chat", "pin": {}},
        {"model": "tiny-chat", "pin": {"chunk": 1}},
        {"model": "tiny-chat", "pin": {"decode": {"threads": 0}}},
        {"model": "tiny-chat", "pin": {"decode": {"threads": "two"}}},
        {"model": "tiny-chat", "pin": 5},
        {"model": "tiny-chat", "unpin": False},
        {"model": "tiny-chat", "reset": False},
        {"import": "no dump"},
        {"import": 5},
    ],
)
def test_what_is_not_understood_changes_nothing(
    service: InProcess, strategies: FakeStrategies, body: dict[str, object]
) -> None:
    before = dict(strategies.known)
    reply = service.post(ROUTE, body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]
    assert (strategies.reread_models, strategies.held, strategies.known) == ([], [], before)


@pytest.mark.parametrize(
    ("model", "pinned", "hint"),
    [
        ("tiny-chat", {"decode": {"threads": 99}}, "up to 8 threads on CPU 0-7"),
        ("tiny-chat", {"prefill": {"threads": 2, "cpus": [8, 9]}}, "CPU 0-7"),
        ("tiny-chat", {"variant": "nosuch"}, "CPU 0-7"),
        ("tiny-embed", {"decode": {"threads": 2}}, "CPU 0-7"),
        ("tiny-embed", {"chunk": 64}, "CPU 0-7"),
    ],
)
def test_a_pin_that_cannot_hold_here_is_refused_with_what_there_is(
    service: InProcess, strategies: FakeStrategies, model: str, pinned: dict[str, object], hint: str
) -> None:
    reply = service.post(ROUTE, {"model": model, "pin": pinned})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "pin_invalid"
    assert hint in reply.json()["error"]["hint"]
    assert strategies.dumps.pinned(strategies.known[model].binding) is None


@pytest.mark.parametrize("query", ["model=zebra", "generation=1", "model=tiny-chat&generation=x"])
def test_what_is_not_there_is_said_so(service: InProcess, query: str) -> None:
    assert service.call("GET", f"{ROUTE}?{query}").status_code in (400, 404)


def test_storage_that_refuses_is_said_and_nothing_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / "strategies").write_text("in the way")
    strategies = FakeStrategies(tmp_path, "tiny-chat")
    service = InProcess(Settings(server=ServerSettings(api_keys=KEYS)), strategies=strategies)
    service.headers = {"Authorization": "Bearer root"}
    reply = service.post(ROUTE, {"model": "tiny-chat", "pin": {"chunk": 64}})
    assert reply.status_code == 507
    assert "cannot be written" in reply.json()["error"]["message"]
    assert strategies.reread_models == []


def test_a_service_that_learns_nothing_says_so() -> None:
    service = InProcess(Settings(server=ServerSettings(api_keys=KEYS)))
    service.headers = {"Authorization": "Bearer root"}
    assert service.call("GET", ROUTE).status_code == 501
