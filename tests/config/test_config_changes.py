from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.config import (
    AgentSettings,
    ApiKey,
    EngineSettings,
    LogSettings,
    ModelsSettings,
    ServerSettings,
    Settings,
)
from magnitude.config.changes import LIVE_KEYS, ReloadOutcome, changed, followed

ALL_KEYS = {
    f"{section}.{key}"
    for section in Settings.__struct_fields__
    if section != "agent"
    for key in getattr(Settings(), section).__struct_fields__
}


def test_equal_settings_differ_in_nothing() -> None:
    assert changed(Settings(), Settings()) == []


def test_keys_that_differ_are_named_in_order() -> None:
    new = Settings(
        log=LogSettings(level="debug"),
        engine=EngineSettings(threads=3),
        server=ServerSettings(api_keys=[ApiKey(name="a", sha256="0" * 64)], max_queue=7),
        agent=AgentSettings(),
    )
    names = ["agent", "engine.threads", "log.level", "server.api_keys", "server.max_queue"]
    assert changed(Settings(), new) == names
    assert changed(new, Settings()) == names


def test_every_key_that_can_be_followed_exists() -> None:
    assert LIVE_KEYS <= ALL_KEYS


def test_the_documentation_names_every_key_that_is_followed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = page.partition("## Reload")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_.*]+)`", section)
    for key in LIVE_KEYS:
        assert any(fnmatch(key, name) or fnmatch(key, f"kv.{name}") for name in named), key


def test_of_the_strategy_loop_only_what_counts_at_its_start_is_not_followed() -> None:
    policy = {key for key in ALL_KEYS if key.startswith("policy.")}
    assert policy - LIVE_KEYS == {"policy.cold_start_s", "policy.field_test"}


def test_what_opens_sockets_or_builds_the_engine_is_not_followed() -> None:
    assert not LIVE_KEYS & {"server.listen", "server.unix_socket", "engine.model_path", "engine.threads", "kv.slots"}


def test_followed_settings_are_the_new_ones_where_that_is_possible() -> None:
    old = Settings(engine=EngineSettings(threads=2))
    new = Settings(
        engine=EngineSettings(threads=3, default_max_tokens=11), models=ModelsSettings(aliases={"gpt": "tiny"})
    )
    now = followed(old, new)
    assert now.engine == EngineSettings(threads=2, default_max_tokens=11)
    assert now.models.aliases == {"gpt": "tiny"}
    assert changed(now, new) == ["engine.threads"]


@st.composite
def some_settings(draw: st.DrawFn) -> Settings:
    return Settings(
        engine=EngineSettings(
            threads=draw(st.integers(0, 4)), default_max_tokens=draw(st.integers(1, 3)), max_batch_size=1
        ),
        server=ServerSettings(max_queue=draw(st.integers(0, 3)), listen=draw(st.sampled_from(["", "127.0.0.1:1"]))),
        log=LogSettings(level=draw(st.sampled_from(["debug", "info"]))),
        agent=draw(st.sampled_from([None, AgentSettings()])),
    )


@given(some_settings(), some_settings())
def test_after_a_reload_only_what_needs_a_restart_still_differs(old: Settings, new: Settings) -> None:
    now = followed(old, new)
    assert set(changed(now, new)) == set(changed(old, new)) - LIVE_KEYS
    assert set(changed(old, now)) == set(changed(old, new)) & LIVE_KEYS
    assert followed(now, new) == now


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (ReloadOutcome(error="line 3: no YAML"), "reload failed: line 3: no YAML (old configuration kept)"),
        (ReloadOutcome(), "reload: nothing changed"),
        (ReloadOutcome(applied=["log.level"]), "reload applied: log.level"),
        (ReloadOutcome(needs_restart=["kv.slots"]), "reload applied: nothing, needs restart: kv.slots"),
    ],
)
def test_the_outcome_in_words(outcome: ReloadOutcome, words: str) -> None:
    assert str(outcome) == words
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=ReloadOutcome) == outcome
