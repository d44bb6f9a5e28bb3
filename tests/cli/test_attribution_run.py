"""`magnitude attribute` against a service in simulated time: what is held when, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from magnitude.board.profiles import load_profile
from magnitude.cli.attribution.run import HOLD_S, Proof
from magnitude.cli.attribution.work import Ask, Work, built_in
from magnitude.cli.client import ChatDelta, ServiceRefused, ServiceUnreachable
from magnitude.policy.attribution import Attribution, Figure, attribute

CHAT = Ask(route="chat", body={"model": "tiny-chat", "messages": [], "max_tokens": 11})
WORK: Work = ((CHAT,), (CHAT, CHAT))


class SimulatedService:
    """Answers take `step_s` a token, half as long while the loop is on; its clock goes on only while it works."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.step_s = 0.02
        self.gain = 0.5
        self.held = False
        self.holds: list[float] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.refuse_while_on = False
        self.goes_at = -1  # after so many answers
        self.decode_s = 0.0
        self.switches = 0
        self.closed = 0
        self.lock = threading.Lock()

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class SimulatedClient:
    """As much of `ServiceClient` as is used."""

    def __init__(self, service: SimulatedService) -> None:
        self.service = service

    def __enter__(self) -> SimulatedClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.service.closed += 1

    def post(self, path: str, body: dict[str, Any]) -> Any:
        service = self.service
        if "hold" in body:
            service.holds.append(body["hold"])
            service.switches += service.held and not body["hold"]
            service.held = body["hold"] > 0
        return {}

    def get(self, path: str) -> Any:
        service = self.service
        if path.endswith("state"):
            rss = 200_000_000 if service.held else 325_000_000
            return {"engine_rss_bytes": rss, "run_times": {"prefill_s": 0.0, "decode_s": service.decode_s}}
        threads = {"threads": 4 if service.held else 2}
        running = {
            "in_words": f"answers {threads['threads']} threads",
            "strategy": {"prefill": {"threads": 4}, "decode": threads},
            "switches": service.switches,
            "delay_s": 1.5,
            "cpu_s": service.now_s / 1000,
        }
        return {"data": [{"model": "tiny-chat", "running": running}]}

    def chat(self, body: dict[str, Any], headers: dict[str, str]) -> Iterator[ChatDelta]:
        service = self.service
        with service.lock:
            service.asked.append("off" if service.held else "on")
            service.headers.append(headers)
            if len(service.asked) == service.goes_at:
                raise ServiceUnreachable("gone")
            if service.refuse_while_on and not service.held:
                raise ServiceRefused(429, "full")
            for number in range(body["max_tokens"]):
                took_s = service.step_s * (1 if service.held else service.gain) * (2 if number == 0 else 1)
                service.now_s += took_s
                service.decode_s += took_s
                yield ChatDelta(text="x ")
            yield ChatDelta(usage={"completion_tokens": body["max_tokens"]})


def proof_of(service: SimulatedService, work: Work = WORK, *, profile: str = "") -> Proof:
    return Proof(
        lambda: SimulatedClient(service),  # type: ignore[arg-type,return-value]
        work,
        "tiny-chat",
        meter=None,
        profile=load_profile(profile) if profile else None,
        clock=service.clock,
        sleep=service.sleep,
    )


def figure(found: Attribution, name: str) -> Figure:
    return next(one for one in found.figures if one.name == name)


def test_the_same_work_runs_in_both_modes_in_turn_and_the_gain_comes_out() -> None:
    service = SimulatedService()
    proof = proof_of(service)
    proof.run(150)
    assert len(proof.rounds_took_s) >= 9
    assert [block.mode for block in proof.blocks[:8]] == ["off", "on", "on", "off", "on", "off", "off", "on"]
    found = attribute(proof.blocks, resamples=50)
    for name in ("first token", "between tokens"):
        ratio = figure(found, name).ratio
        assert ratio is not None
        assert ratio.value == pytest.approx(service.gain, rel=0.01)
        assert figure(found, name).verdict == "better"
    assert (figure(found, "peak memory").off, figure(found, "peak memory").on) == (200e6, 325e6)
    seen = proof.seen()
    assert (seen.strategies_off, seen.strategies_on) == (("answers 4 threads",), ("answers 2 threads",))
    assert seen.on_delay_s == 1.5
    # This service switches whenever it is let go.
    assert 0 < sum(block.switches for block in proof.blocks) <= 2 * len(proof.rounds_took_s)
    assert seen.energy == ""
    assert {frozenset(headers.items()) for headers in service.headers} == {
        frozenset({"X-Magnitude-Keep": "no", "X-Magnitude-Task": "attribute"}.items())
    }


def test_the_loop_is_on_again_afterwards_and_no_hold_is_longer_than_a_dead_client_may_leave() -> None:
    service = SimulatedService()
    proof_of(service).run(5)
    assert service.holds[-1] == 0
    assert not service.held
    assert max(service.holds) == HOLD_S


def test_the_loop_learns_the_work_first_with_rests_in_between_and_nothing_of_that_counts() -> None:
    service = SimulatedService()
    proof = proof_of(service)
    began_s = service.now_s
    proof.run(100, 40)
    first_hold = service.holds.index(HOLD_S)
    assert first_hold == 0  # nothing is held while it learns
    learned = service.asked.index("off")
    assert learned >= 3 * 2
    counted = sum(len(block.answers) for block in proof.blocks)
    assert len(service.asked) == learned + 2 * (1 + 3) + counted + len(proof.blocks)
    assert service.now_s - began_s <= 100


def test_one_round_at_least_is_run_and_none_that_would_not_fit() -> None:
    service = SimulatedService()
    short = proof_of(service)
    short.run(0.1)
    assert len(short.rounds_took_s) == 1
    began_s = service.now_s
    proof_of(service).run(60)
    assert service.now_s - began_s <= 60


def test_a_service_that_goes_ends_it_and_the_loop_is_let_go() -> None:
    service = SimulatedService()
    service.goes_at = 9
    proof = proof_of(service)
    with pytest.raises(ServiceUnreachable):
        proof.run(60)
    assert service.holds[-1] == 0
    assert service.closed == 4  # two for the work, one to watch, one to hold


def test_refused_requests_are_failures_not_quick_answers() -> None:
    service = SimulatedService()
    service.refuse_while_on = True
    proof = proof_of(service)
    proof.run(10)
    found = attribute(proof.blocks, resamples=50)
    assert found.failed_off == 0
    assert found.failed_on == 3 * 2 * len(proof.rounds_took_s)
    assert "between tokens" not in [one.name for one in found.figures]


def test_energy_is_modelled_by_the_threads_that_ran() -> None:
    service = SimulatedService()
    service.gain = 1.0  # the same time, on fewer threads
    proof = proof_of(service, profile="pi5-bare")
    proof.run(150)
    one = figure(attribute(proof.blocks, resamples=50), "energy of the work")
    assert one.verdict == "better"
    assert proof.seen().energy == "modelled by the profile pi5-bare"


def test_the_built_in_mix_is_the_same_for_the_same_seed_and_has_what_agents_do() -> None:
    mix = built_in(3, "tiny-chat", "tiny-embed")
    assert mix == built_in(3, "tiny-chat", "tiny-embed")
    assert mix != built_in(4, "tiny-chat", "tiny-embed")
    assert {ask.route for step in mix for ask in step} == {"chat", "embeddings"}
    assert max(map(len, mix)) == 4
    assert {ask.route for step in built_in(3, "", "tiny-embed") for ask in step} == {"embeddings"}
    assert {ask.route for step in built_in(3, "tiny-chat", "") for ask in step} == {"chat"}
