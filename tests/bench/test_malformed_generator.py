"""The generator of malformed requests."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bench.malformed import KINDS, requests
from bench.malformed.request import ROUTES, http, valid_body


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert list(requests(7, 100)) == list(requests(7, 100))


def test_another_seed_gives_other_bytes() -> None:
    assert list(requests(7, 100)) != list(requests(8, 100))


def test_every_kind_comes_up_about_equally_often() -> None:
    counts = Counter(request.kind for request in requests(1, 10 * len(KINDS) + 3))
    assert set(counts) == set(KINDS)
    assert set(counts.values()) <= {10, 11}


@given(st.sampled_from(sorted(KINDS)), st.integers(min_value=0, max_value=2**32))
def test_every_kind_makes_bytes_to_send_for_any_random_source(kind: str, seed: int) -> None:
    payload, ending = KINDS[kind](random.Random(seed))
    assert payload
    assert ending in {"read", "leave", "hold"}


@given(st.sampled_from(ROUTES), st.integers(min_value=0, max_value=2**32))
def test_a_half_sent_request_never_is_a_whole_one(route: str, seed: int) -> None:
    payload, _ = KINDS["half_sent"](random.Random(seed))
    head, separator, body = payload.partition(b"\r\n\r\n")
    if separator:
        claimed = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        assert len(body) < claimed


def test_a_request_is_framed_correctly_unless_it_claims_another_length() -> None:
    body = str(valid_body(random.Random(1), ROUTES[0])).encode()
    head, _, rest = http(body).partition(b"\r\n\r\n")
    assert rest == body
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert b"Content-Length: 9999\r\n" in http(body, length="9999")
