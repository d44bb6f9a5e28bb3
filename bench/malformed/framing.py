"""Requests whose frame is wrong: methods, paths, headers, lengths, chunks, and clients that leave too early."""

from __future__ import annotations

import json
import random

from bench.malformed.request import CHAT, COMPLETIONS, ROUTES, Made, Maker, encoded, http, valid_body


def wrong_methods(source: random.Random) -> Made:
    method = source.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "BREW", "post"))
    route = source.choice((*ROUTES, "/healthz", "/v1/models", "/metrics", "*", "//", "/v1/../v1/models"))
    return http(b"{}", route, method=method), "read"


def wrong_paths(source: random.Random) -> Made:
    path = source.choice((
        "/", "/v1", "/v1/nothing", "/%00", "/%ff%fe", "/" + "a" * 20_000, "/..%2f..%2fetc/passwd",
        "/v1/models/%2e%2e",
        "/v2/models//infer", "http://other/v1/models", "/v1/models?x=%zz", "/v1/chat/completions/", "nothing",
    ))  # fmt: skip
    return http(b"{}", path, method=source.choice(("GET", "POST"))), "read"


def wrong_types_of_content(source: random.Random) -> Made:
    kind = source.choice(
        ("text/plain", "multipart/form-data; boundary=", "application/x-www-form-urlencoded", "\xff", "")
    )
    encoding = source.choice(("gzip", "br", "identity", "x" * 300))
    body = source.choice(
        (b"", b"a=1&b=2", b"\x1f\x8b\x08\x00broken", b"{}", bytes(source.randrange(256) for _ in range(64)))
    )
    return http(body, headers=(("Content-Type", kind), ("Content-Encoding", encoding))), "read"


def oversized_headers(source: random.Random) -> Made:
    size = source.choice((9_000, 70_000, 300_000))
    if source.random() < 0.5:
        return http(b"{}", headers=(("X-Long", "x" * size),)), "read"
    return http(b"{}", headers=tuple((f"X-{number}", "y" * 40) for number in range(size // 50))), "read"


def oversized_bodies(source: random.Random) -> Made:
    # Over the default limit of 4 MiB, as one string or as many values.
    filling = '"' + "x" * 5_000_000 + '"' if source.random() < 0.5 else "[" + "1," * 2_500_000 + "1]"
    return http(f'{{"model":"default","max_tokens":2,"prompt":{filling}}}'.encode(), COMPLETIONS), "read"


def bad_headers(source: random.Random) -> Made:
    line = source.choice((
        b"Host: a\r\nHost: b", b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"No-Colon", b": empty", b"A B: c",
        b"X: a\x00b", b"X: a\rb", b" folded: x", b"Content-Length: -1", b"Content-Length: 1e3",
        b"Content-Length: 1, 2",
        b"Transfer-Encoding: nonsense", b"Expect: 200-maybe", b"Upgrade: websocket\r\nConnection: Upgrade",
        b"Authorization: Bearer", b"Authorization: Basic \xff\xff", b"Origin: http://evil.example",
        b"Host: evil.example",
        b"X-Request-Id: " + b"z" * 5_000, b"Range: bytes=9-1", b"Cookie: " + b"=;" * 500,
    ))  # fmt: skip
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n" + line + b"\r\nConnection: close\r\n\r\n{}",
        "read",
    )


def bad_request_lines(source: random.Random) -> Made:
    line = source.choice((
        b"", b"GET", b"GET /", b"GET / HTTP/9.9", b"GET / HTTP/0.9", b"get / http/1.1",
        b"POST /v1/models HTTP/1.1 extra",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-client", b"PRI * HTTP/2.0", b"GET\t/\tHTTP/1.1",
        b"GET /\x00 HTTP/1.1", b"GET /\xff\xff HTTP/1.1", b"A" * 70_000,
    ))  # fmt: skip
    return line + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", "read"


def bad_chunks(source: random.Random) -> Made:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    chunks = source.choice((
        b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\nabc\r\n0\r\n\r\n", b"5\r\nabc\r\n0\r\n\r\n",
        b"ffffffffffffffffff\r\nabc\r\n",
        b"3;" + b"x" * 70_000 + b"\r\nabc\r\n0\r\n\r\n", b"3\r\nabc0\r\n\r\n", b"2\r\n{}\r\n0\r\nNo-Colon\r\n\r\n",
    ))  # fmt: skip
    return head + chunks, "read"


def random_bytes(source: random.Random) -> Made:
    return source.randbytes(source.randint(1, 3_000)) + b"\r\n\r\n", "read"


def half_sent(source: random.Random) -> Made:
    route, body = encoded(source)
    whole = http(body, route)
    return whole[: source.randrange(1, len(whole) - 1)], source.choice(("hold", "leave"))


def left_unread(source: random.Random) -> Made:
    """A valid request whose client is gone before the answer; streamed or not."""
    body = valid_body(source, CHAT)
    body.update(stream=source.random() < 0.5, max_tokens=source.randint(1, 40))
    return http(json.dumps(body).encode()), "leave"


def short_body(source: random.Random) -> Made:
    route, body = encoded(source)
    return http(body, route, length=str(len(body) + source.randint(1, 10_000))), source.choice(("hold", "leave"))


def pipelined_rubbish(source: random.Random) -> Made:
    good = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    return good * source.randint(1, 20) + source.randbytes(200) + b"\r\n\r\n", source.choice(("read", "leave"))


FRAMES: tuple[Maker, ...] = (
    wrong_methods,
    wrong_paths,
    wrong_types_of_content,
    oversized_headers,
    oversized_bodies,
    bad_headers,
    bad_request_lines,
    bad_chunks,
    random_bytes,
    half_sent,
    left_unread,
    short_body,
    pipelined_rubbish,
)
