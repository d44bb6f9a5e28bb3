from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.config import AgentSettings, Settings, ToolSettings
from magnitude.config.load import effective, load, load_text
from magnitude.errors import ConfigError

AGENT_SHAPE = """
engine:
  model_path: ./models/agent_model_int8.onnx
  max_batch_size: 4
  prefill_chunk_size: 128
  self_optimize: true
  optimization_window: 50
agent:
  tools:
    - {name: file_reader, type: local}
    - {name: calculator, type: builtin}
  max_iterations: 10
"""


def test_an_empty_file_gives_the_defaults() -> None:
    assert load_text("").settings == Settings()
    assert load_text("engine:\nserver:\n").settings == Settings()


def test_the_published_shape_loads_and_says_that_the_agent_is_not_active() -> None:
    loaded = load_text(AGENT_SHAPE)
    assert loaded.settings.engine.model_path == "./models/agent_model_int8.onnx"
    assert loaded.settings.agent == AgentSettings(
        tools=[ToolSettings(name="file_reader", type="local"), ToolSettings(name="calculator", type="builtin")],
        max_iterations=10,
    )
    assert any("not active" in notice for notice in loaded.notices)


def test_a_short_optimisation_window_is_noticed() -> None:
    assert any("oscillate" in notice for notice in load_text("engine: {optimization_window: 20}").notices)
    assert load_text("engine: {optimization_window: 50}").notices == ()


@pytest.mark.parametrize(
    ("text", "where", "said", "hint"),
    [
        ("engin: {}", "line 1", "unknown key 'engin'", "'engine'"),
        ("engine:\n  prefil_chunk_size: 1\n", "line 2", "unknown key", "'prefill_chunk_size'"),
        ("on: 1", "line 1", "unknown key 'on'", "Known keys"),
        ("engine: {threads: 010}", "engine.threads", "the text '010'", "leading zero"),
        ("engine: {threads: 0800}", "engine.threads", "the text '0800'", "leading zero"),
        ("engine: {threads: 1:30}", "engine.threads", "the text '1:30'", "without quotes"),
        ("engine: {threads: '4'}", "engine.threads", "the text '4'", "without quotes"),
        ("engine: {threads: 1e3}", "engine.threads", "the number '1e3'", "threads: 4"),
        ("engine: {threads: on}", "engine.threads", "the text 'on'", "without quotes"),
        ("engine: {threads: true}", "engine.threads", "the boolean 'true'", "without quotes"),
        ("engine: {threads: }", "engine.threads", "nothing", "threads: 4"),
        ("engine: {threads: [1]}", "engine.threads", "a list", "threads: 4"),
        ("engine: {self_optimize: on}", "engine.self_optimize", "the text 'on'", "true and false"),
        ("engine: {self_optimize: 1}", "engine.self_optimize", "the number '1'", "true and false"),
        ("engine: 4", "engine", "the number '4'", "indentation"),
        ("models: {aliases: {a: 1.10}}", "models.aliases.a", "the number '1.10'", 'a: "1.10"'),
        ("models: {load: [1]}", "models.load[0]", "the number '1'", '"1"'),
        ("models: {load: minilm}", "models.load", "the text 'minilm'", "[a, b]"),
        ("log: {level: inform}", "log.level", "the text 'inform'", "'info'"),
        ("log: {level: on}", "log.level", "the text 'on'", "debug"),
        ("agent: {tools: [{name: x}]}", "agent.tools[0].type", "missing", "type"),
        ("agent: {tools: [{name: x, type: remote}]}", "agent.tools[0].type", "'remote'", "local"),
        ("engine: {threads: 999}", "engine.threads", "999", "engine.threads"),
        ("engine: {optimization_window: 19}", "engine.optimization_window", "19", "optimization_window"),
        ("policy: {explore: always}", "policy.explore", "'always'", "load"),
        ("policy: {cold_start_s: -1}", "policy.cold_start_s", "-1", "cold_start_s"),
        ("server: {api_keys: [{name: x, sha256: abc}]}", "server.api_keys[0].sha256", "abc", "sha256"),
        ("server: {max_request_bytes: 4M}", "server.max_request_bytes", "1000 or 1024", ""),
        ("server: {client_timeout_s: 5m}", "server.client_timeout_s", "not a duration", ""),
        ("server: {client_timeout_s: 2h}", "server.client_timeout_s", "2h", ""),
        ("server: {listen: 11500}", "server.listen", "the number '11500'", '"11500"'),
        ("server: {listen: localhost}", "server.listen", "host:port", "127.0.0.1:11500"),
    ],
)
def test_a_mistake_is_named_with_place_reading_and_remedy(text: str, where: str, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_text(text, "magnitude.yaml")
    assert where in error.value.message or where in (error.value.param or "")
    assert said in error.value.message
    assert hint in error.value.hint


def test_units_are_understood_where_the_key_names_one() -> None:
    settings = load_text("server: {max_request_bytes: 2 MiB, client_timeout_s: 1min 30s}").settings
    assert settings.server.max_request_bytes == 2 << 20
    assert settings.server.client_timeout_s == 90.0
    assert load_text("server: {client_timeout_s: 45}").settings.server.client_timeout_s == 45.0


def test_an_octal_mode_may_be_written_with_or_without_quotes() -> None:
    for written in ("0660", '"0660"'):
        text = f"server: {{unix_socket_mode: {written}}}"
        assert load_text(text).settings.server.unix_socket_mode == "0660"


def test_two_keys_of_one_name_are_refused() -> None:
    key = "{name: x, sha256: " + "0" * 64 + "}"
    with pytest.raises(ConfigError, match="two keys with the name 'x'"):
        load_text(f"server: {{api_keys: [{key}, {key}]}}")


def test_later_fragments_win_and_all_files_are_listed(tmp_path: Path) -> None:
    main = tmp_path / "magnitude.yaml"
    main.write_text("engine: {threads: 1, context_length: 512}\nmodels: {aliases: {a: x}}\n")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/20-late.yaml").write_text("engine: {threads: 3}\n")
    (tmp_path / "conf.d/10-early.yaml").write_text("engine: {threads: 2}\nmodels: {aliases: {b: y}}\n")
    (tmp_path / "conf.d/notes.txt").write_text("not: [read\n")
    loaded = load(main, {})
    assert loaded.settings.engine.threads == 3
    assert loaded.settings.engine.context_length == 512
    assert loaded.settings.models.aliases == {"a": "x", "b": "y"}
    assert [Path(name).name for name in loaded.files] == ["magnitude.yaml", "10-early.yaml", "20-late.yaml"]


def test_an_error_names_the_fragment_that_it_stands_in(tmp_path: Path) -> None:
    main = tmp_path / "magnitude.yaml"
    main.write_text("engine: {threads: 1}\n")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/10-site.yaml").write_text("# site\nengine:\n  threads: 1000\n")
    with pytest.raises(ConfigError, match=r"10-site\.yaml, line 3"):
        load(main, {})


def test_relative_paths_are_relative_to_the_file_they_stand_in(tmp_path: Path) -> None:
    main = tmp_path / "magnitude.yaml"
    main.write_text(AGENT_SHAPE)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/10.yaml").write_text("models: {folder: ../elsewhere}\nserver: {unix_socket: ''}\n")
    settings = load(main, {}).settings
    assert settings.engine.model_path == str(tmp_path / "models/agent_model_int8.onnx")
    assert settings.models.folder == str(tmp_path / "elsewhere")
    assert settings.server.unix_socket == ""


def test_a_named_file_must_exist_and_an_unnamed_one_need_not(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    for path, environ in ((missing, {}), (None, {"MAGNITUDE_CONFIG": str(missing)})):
        with pytest.raises(ConfigError, match="does not exist"):
            load(path, environ)
    loaded = load(None, {"MAGNITUDE_HOME": str(tmp_path)})
    assert loaded.settings == Settings()
    assert loaded.files == ()


def test_the_command_line_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("engine: {threads: 1}")
    (tmp_path / "b.yaml").write_text("engine: {threads: 2}")
    environ = {"MAGNITUDE_CONFIG": str(tmp_path / "b.yaml")}
    assert load(tmp_path / "a.yaml", environ).settings.engine.threads == 1
    assert load(None, environ).settings.engine.threads == 2


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a: \x80"])
def test_a_file_that_is_not_text_is_a_configuration_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(path, {})


def test_a_folder_in_place_of_the_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, {})


def test_the_bound_of_a_duration_has_its_unit() -> None:
    with pytest.raises(ConfigError, match=r"cold_start_s is 2h, which is out of bounds: expected <= 3600 s \(1h\)\."):
        load_text("policy: {cold_start_s: 2h}")
    with pytest.raises(ConfigError, match=r"expected >= 10 s\."):
        load_text("policy: {save_every_s: 1}")
    with pytest.raises(ConfigError, match=r"expected <= 0\.5\. "):
        load_text("policy: {least_gain: 1}")


def test_a_field_test_with_a_share_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="no name") as raised:
        load_text("policy: {field_test: {share: 0.5}}")
    assert raised.value.param == "policy.field_test.name"
    assert raised.value.hint
    assert load_text("policy: {field_test: {name: autumn, share: 0.5}}").settings.policy.field_test.share == 0.5


@pytest.mark.parametrize(
    ("percent", "words"),
    [("[70, 80]", "6 steps"), ("[70, 75, 75, 85, 90, 95]", "higher"), ("[70, 75, 80, 85, 90, 101]", "out of bounds")],
)
def test_thresholds_of_memory_that_make_no_sense_are_refused(percent: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_text(f"memory: {{thresholds_percent: {percent}}}")


def test_levels_of_the_battery_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="battery_least_percent"):
        load_text("power: {battery_saving_percent: 10}")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfengine: {threads: 2}\n")
    assert load(path, {}).settings.engine.threads == 2


@given(
    alias=st.dictionaries(st.text(min_size=1, max_size=12), st.text(max_size=12), max_size=4),
    threads=st.integers(0, 256),
    timeout_s=st.floats(0.001, 3600),
)
def test_the_effective_configuration_reads_back_to_itself(
    alias: dict[str, str], threads: int, timeout_s: float
) -> None:
    import msgspec

    settings = msgspec.convert(
        {
            "engine": {"threads": threads},
            "models": {"aliases": alias},
            "server": {"client_timeout_s": timeout_s, "api_keys": [{"name": "1e3", "sha256": "1" * 64}]},
            "agent": {"tools": [{"name": "on", "type": "local"}]},
        },
        Settings,
    )
    assert load_text(effective(settings)).settings == settings
