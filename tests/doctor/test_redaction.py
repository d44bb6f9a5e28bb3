from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.doctor.redaction import CONTENT_LINE, REMOVED, Redactor

SECRET = "Zr7-planted-4Qx9"

CONTEXTS = [
    "api_key: {}",
    "MAGNITUDE_API_KEY={} magnitude ps",
    '{{"api_key": "{}", "other": 1}}',
    "Authorization: Bearer {}",
    "authorization=Basic {}",
    "password = '{}'",
    '    - {{name: kitchen, sha256: "{}"}}',
    "hf_token: {}",
    "client-secret={}; next=1",
    "fetching https://user:{}@example.org/models failed",
    'error="the header Bearer {} is not known"',
]


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_value_of_a_name_that_speaks_of_a_secret_is_removed(context: str) -> None:
    redacted = Redactor().text(context.format(SECRET))
    assert SECRET not in redacted
    assert REMOVED in redacted


@given(
    st.sampled_from(CONTEXTS[:-2]),
    st.text(st.characters(categories=("L", "N"), include_characters="-_+/=."), min_size=8, max_size=60),
)
def test_no_secret_survives_behind_its_name(context: str, secret: str) -> None:
    # What the surroundings say themselves is no secret.
    if secret not in context and secret not in REMOVED:
        assert secret not in Redactor().text(context.format(secret))


@given(st.text(min_size=6, max_size=40), st.text(max_size=100), st.text(max_size=100))
def test_a_known_secret_is_found_wherever_it_stands(secret: str, before: str, after: str) -> None:
    if secret not in REMOVED and secret not in before + after:
        assert secret not in Redactor([secret]).text(f"{before}|{secret}|{after}").replace(REMOVED, "")


@pytest.mark.parametrize(
    "secret", ["mag-UbJoNWMjH2ib8TGsWdeVFKAbCcISXorL", "sk-abcdefghijklmnop1234", "eyJhbGciOiJIUzI1NiJ9.e30.c2ln"]
)
def test_what_looks_like_a_key_is_one(secret: str) -> None:
    assert secret not in Redactor().text(f"somebody wrote {secret} into a comment")


def test_a_private_key_is_removed_with_its_lines() -> None:
    text = "before\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIr\nabc=\n-----END EC PRIVATE KEY-----\nafter"
    assert Redactor().text(text) == f"before\n{REMOVED}\nafter"


@pytest.mark.parametrize(
    "line",
    [
        "prompt_tokens=37 new_tokens=8 cached_tokens=0 tokens_per_s_of_4=81",
        '{"prompt_tokens": 34, "max_inter_token_ms": 50.0, "tokenizer_file": "tokenizer.json"}',
        'magnitude_prompt_tokens_total{model="m"} 37.0',
        "read https://example.org/path?x=1",
        "<6>model loaded model=smollm2-135m-instruct load_s=0.314 weights_mb=124",
    ],
)
def test_what_helps_is_left_as_it_is(line: str) -> None:
    assert Redactor().text(line) == line
    assert Redactor().log(line) == f"{line}\n"


@pytest.mark.parametrize(
    "line",
    [
        '2026-11-29T22:26:32 magnitude[7]: content request=req-1 prompt="{}" answer=yes',
        '<6>content prompt={} answer="no"',
        json.dumps({"time": "x", "message": "content", "said": "{}"}),
        json.dumps({"messages": [{"role": "user", "content": "{}"}]}),
    ],
)
def test_lines_with_what_people_said_are_left_out_of_logs(line: str) -> None:
    log = Redactor().log(f"first\n{line.replace('{}', SECRET)}\nlast")
    assert log.splitlines() == ["first", CONTENT_LINE, "last"]


def test_a_document_loses_the_values_of_secret_names_at_any_depth() -> None:
    document = {
        "server": {"api_keys": [{"name": "kitchen", "sha256": SECRET, "admin": False}], "listen": "127.0.0.1:1"},
        "cloud": {"token": SECRET, "password": None},
        "list": [f"Bearer {SECRET}"],
    }
    redacted = Redactor().tree(document)
    assert SECRET not in json.dumps(redacted)
    assert redacted["server"]["api_keys"][0] == {"name": "kitchen", "sha256": REMOVED, "admin": False}
    assert redacted["server"]["listen"] == "127.0.0.1:1"
    assert redacted["cloud"]["password"] is None
