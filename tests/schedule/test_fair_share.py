"""Accounts of work between clients."""

from hypothesis import given
from hypothesis import strategies as st

from magnitude.schedule.fair_share import REMEMBERED_CLIENTS, FairShare, work_tokens

WORK = st.lists(st.floats(1, 500), min_size=30, max_size=30)


@given(st.lists(WORK, min_size=2, max_size=5))
def test_clients_that_always_have_requests_get_the_same_work_to_within_one_request(works: list[list[float]]) -> None:
    shares = FairShare()
    clients = [f"{number}" for number in range(len(works))]
    for client in clients:
        shares.enter(client)
    done = dict.fromkeys(clients, 0.0)
    queues = {client: list(work) for client, work in zip(clients, works, strict=True)}
    while all(queues.values()):
        client = min(clients, key=shares.work)
        work = queues[client].pop()
        shares.start(client, work)
        done[client] += work
        assert max(done.values()) - min(done.values()) <= max(max(work) for work in works) + 1e-6


def test_idleness_earns_nothing() -> None:
    shares = FairShare()
    shares.enter("busy")
    shares.enter("idle")
    shares.leave("idle")
    for _ in range(10):
        shares.start("busy", 100.0)
    shares.enter("idle")
    assert shares.work("idle") == shares.work("busy") - 100.0


def test_leaving_and_coming_back_does_not_clear_an_account() -> None:
    shares = FairShare()
    shares.enter("a")
    shares.enter("b")
    shares.start("a", 1000.0)
    shares.leave("a")
    shares.start("b", 10.0)
    shares.enter("a")
    assert shares.work("a") - shares.work("b") == 990.0


def test_when_nobody_is_present_the_past_is_forgotten() -> None:
    shares = FairShare()
    shares.enter("a")
    shares.start("a", 1000.0)
    shares.leave("a")
    shares.enter("b")
    shares.enter("a")
    assert shares.work("a") == shares.work("b")


def test_a_correction_gives_back_what_was_estimated_too_high() -> None:
    shares = FairShare()
    shares.enter("a")
    shares.enter("b")
    shares.start("a", 1000.0)
    shares.start("b", 100.0)
    shares.correct("a", -990.0)
    assert min("ab", key=shares.work) == "a"


def test_the_number_of_absent_clients_that_are_remembered_is_bounded() -> None:
    shares = FairShare()
    shares.enter("present")
    for number in range(2 * REMEMBERED_CLIENTS):
        shares.enter(f"{number}")
        shares.start(f"{number}", 1000.0)
        shares.leave(f"{number}")
    remembered = sum(shares.work(f"{number}") > 0 for number in range(2 * REMEMBERED_CLIENTS))
    assert remembered == REMEMBERED_CLIENTS


@given(st.integers(0, 10_000), st.integers(0, 1000))
def test_every_request_is_work(prompt_tokens: int, new_tokens: int) -> None:
    assert work_tokens(prompt_tokens, new_tokens) >= max(1, new_tokens)
