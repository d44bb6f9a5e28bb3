from __future__ import annotations

import pytest

from magnitude.config import parse_listen
from magnitude.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:11500", "127.0.0.1", 11500, True),
        ("127.8.9.1:1", "127.8.9.1", 1, True),
        ("localhost:0", "localhost", 0, True),
        ("[::1]:80", "::1", 80, True),
        ("0.0.0.0:80", "0.0.0.0", 80, False),
        ("[::]:80", "::", 80, False),
        ("[::ffff:192.168.0.1]:80", "::ffff:192.168.0.1", 80, False),
        ("board.local:80", "board.local", 80, False),
        ("localhost.evil.example:80", "localhost.evil.example", 80, False),
    ],
)
def test_addresses_parse_and_know_who_can_reach_them(text: str, host: str, port: int, loopback: bool) -> None:
    address = parse_listen(text)
    assert address is not None
    assert (address.host, address.port, address.is_loopback) == (host, port, loopback)
    assert str(address) == text


def test_an_empty_address_means_no_tcp() -> None:
    assert parse_listen("") is None


@pytest.mark.parametrize("text", ["localhost", ":80", "::1:80", "[::1]", "h:x", "h:70000", "h:-1", "[h]:80", "h:٣"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_listen(text)
    assert "127.0.0.1:11500" in error.value.hint
