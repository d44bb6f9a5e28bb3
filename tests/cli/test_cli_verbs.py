from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fake_service import STATE, FakeService
from typer.testing import CliRunner

import magnitude
from magnitude.cli.main import app
from magnitude.config.load import load_text
from schedule_samples import BUSY

SOURCE = str(Path(magnitude.__file__).parent.parent)


def command(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the console script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "magnitude.cli.main", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "utf-8", **environ},
    )


def test_help_lists_the_verbs_in_the_order_of_need() -> None:
    result = command("--help")
    assert result.returncode == 0
    verbs = re.findall(r"^  ([a-z]+) ", result.stdout.split("Commands:")[1], re.MULTILINE)
    assert verbs[:3] == ["serve", "run", "ps"]
    assert {"doctor", "bench", "config", "wait"} <= set(verbs)


def test_help_loads_none_of_the_heavy_libraries() -> None:
    program = (
        "import sys; from magnitude.cli.main import find_verbs; find_verbs();"
        "print({'numpy', 'onnxruntime', 'onnx', 'httpx', 'starlette', 'uvicorn', 'tokenizers', 'statistics',"
        " 'concurrent.futures', 'asyncio'} & set(sys.modules))"
    )
    assert printed_by(program) == "set()"


def test_what_a_service_tells_is_read_without_what_a_service_needs() -> None:
    program = (
        "import sys; import magnitude.schedule.inference;"
        "print({'asyncio', 'ctypes', 'numpy', 'magnitude.policy.optimizer'} & set(sys.modules))"
    )
    assert printed_by(program) == "set()"


def test_a_service_that_asks_for_kernels_has_no_numpy_and_no_onnx_runtime() -> None:
    """Engines need them, a service does not."""
    program = (
        "import sys; import magnitude.service; from magnitude.kernels.library import kernels; kernels.why_not();"
        "print({'numpy', 'onnxruntime'} & set(sys.modules))"
    )
    assert printed_by(program) == "set()"


def printed_by(program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    return result.stdout.strip()


def test_an_error_is_two_lines_and_a_status_without_a_traceback() -> None:
    result = command("ps", "--url", "http://127.0.0.1:1")
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: no service answers at http://127.0.0.1:1")
    assert lines[1].startswith("hint: Start it with `magnitude serve`")
    assert len(lines) == 2


def test_a_configuration_error_has_the_status_that_stops_restarts(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("engine:\n  threds: 2\n")
    result = command("config", "check", "--config", str(path))
    assert result.returncode == 78
    assert "c.yaml, line 2: unknown key 'threds'" in result.stderr
    assert "'threads'" in result.stderr


def test_debug_shows_the_traceback() -> None:
    for result in (command("--debug", "ps", "--url", "x:"), command("ps", "--url", "x:", MAGNITUDE_DEBUG="1")):
        assert "Traceback" in result.stderr
        assert result.returncode == 1


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m magnitude.cli.main config schema | head -n 1"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert result.stdout == "{\n"
    assert "Traceback" not in result.stderr


def test_config_show_prints_what_check_accepts_and_names_the_files(
    cli: CliRunner, own_home: Path, tmp_path: Path
) -> None:
    own_home.mkdir()
    (own_home / "magnitude.yaml").write_text("engine: {threads: 3}\n")
    result = cli.invoke(app, ["config", "show", "--set", "engine.context_length=512"])
    assert result.exit_code == 0
    assert "magnitude.yaml" in result.stdout.splitlines()[0]
    settings = load_text(result.stdout).settings
    assert (settings.engine.threads, settings.engine.context_length) == (3, 512)
    as_json = json.loads(cli.invoke(app, ["config", "show", "--json"]).stdout)
    assert as_json["engine"]["threads"] == 3


def test_config_check_shows_notices(cli: CliRunner, own_home: Path) -> None:
    own_home.mkdir()
    (own_home / "magnitude.yaml").write_text("agent: {max_iterations: 3}\n")
    result = cli.invoke(app, ["config", "check"])
    assert "not active" in result.stdout
    assert result.stdout.endswith("The configuration is valid.\n")


def test_a_made_key_fits_the_hash_beside_it(cli: CliRunner) -> None:
    import hashlib

    result = cli.invoke(app, ["config", "hash-key", "kitchen", "--admin"])
    key = result.stdout.splitlines()[0].removeprefix("key: ")
    (entry,) = load_text(result.stdout.split("configuration:\n")[1]).settings.server.api_keys
    assert entry.name == "kitchen"
    assert entry.admin
    assert entry.sha256 == hashlib.sha256(key.encode()).hexdigest()
    again = cli.invoke(app, ["config", "hash-key", "--stdin"], input=key + "\n")
    assert entry.sha256 in again.stdout
    assert key not in again.stdout
    assert command("config", "hash-key", "--stdin", stdin="short\n").returncode == 78


@pytest.mark.parametrize("text", ["engine", "engine.threads", "=1", "engine..threads=1", "engine.threads=a: b: c"])
def test_an_override_that_makes_no_sense_is_a_configuration_error(text: str) -> None:
    assert command("config", "show", "--set", text).returncode == 78


def test_ps_shows_models_memory_and_queue(cli: CliRunner, service: FakeService) -> None:
    result = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}", "--api-key", "secret"])
    assert result.exit_code == 0, result.output
    for said in ("9.9.9", "ready", "1 h 1 min", "4242", "tiny-chat", "131 MB", "int8", "1.5 MB of 94.0 MB", "217 MB"):
        assert said in result.stdout
    assert service.keys == ["Bearer secret"]


def test_ps_says_which_models_are_in_memory(cli: CliRunner, service: FakeService) -> None:
    (chat,) = STATE["models"]
    places = [("loaded", "on_demand"), ("absent", "on_demand"), ("loading", "on_demand"), ("absent", "at_start")]
    models = [
        {**chat, "name": f"model-{n}", "residency": residency, "stay": stay}
        for n, (residency, stay) in enumerate(places)
    ]
    service.more_state = {"models": [chat, *models]}
    lines = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout.splitlines()
    shown = {line.split()[0]: line for line in lines if line.startswith(("tiny-chat", "model-"))}
    assert shown["tiny-chat"].rstrip().endswith(" serving")
    ends = ["serving, on request", " on request", " loading", " not loaded"]
    assert all(shown[f"model-{n}"].rstrip().endswith(end) for n, end in enumerate(ends))


def test_ps_shows_slots_prefixes_conversations_and_segments(cli: CliRunner, service: FakeService) -> None:
    service.more_state = {"schedule": msgspec.to_builtins(BUSY)}
    shown = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout
    for said in (
        "tiny-chat: KV slots 3 running, 7 idle, 5 free; 90.0 MB of 400 MB in 9000 tokens",
        "compute slots: 3 of 4 busy; waiting 1 interactive, 2 background; 1 paused, 2 reserved, 8 preempted",
        "conversations: 9 now, 11.2 taken in freely, 16.0 keep the compute slots busy; 4 saved (12.0 MB)",
        "prefixes: 120 hits, 14 misses (differs 9, evicted 5); 41200 tokens not computed again",
        "task chat: computes 1.25 s (31), waits 3.75 s (28)",
        "task tool: computes 0.50 s (2), waits unknown",
        "encoder and tensor runs: 1 running, 3 waiting",
    ):
        assert said in shown, shown


def test_ps_says_what_was_cached_drafted_and_batched_where_there_was_any(
    cli: CliRunner, service: FakeService
) -> None:
    common = {"failed": 0, "cancelled": 0, "queue_p95_s": 0.1, "prefill_tokens_per_s": 100.0}
    rates = {"decode_tokens_per_s": 20.0, "run_p50_s": 1.0, "run_p95_s": 2.0}
    shares = {"cached_share": 0.75, "accepted_share": 0.5, "batch": 2.5}
    service.more_state = {
        "figures": {
            "generate a": {"count": 1, **common, **rates, **shares},
            "embed b": {"count": 2, **common, **rates},
        }
    }
    shown = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout.splitlines()
    first, second = (line for line in shown if "done" in line)
    assert first.endswith("75% of prompts cached; 50% of drafts right; batch 2.5")
    assert second.endswith("P95 2.000 s")


def test_ps_says_which_step_is_taken_while_memory_is_short(cli: CliRunner, service: FakeService) -> None:
    calm = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout
    assert "short" not in calm
    service.more_state = {"memory": {"step": "refuse_long", "reason": "900 MB of 1000 MB (90 %, /g) are held"}}
    shown = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout
    assert "memory is short: step refuse_long; 900 MB of 1000 MB (90 %, /g) are held" in shown


@pytest.mark.parametrize(
    ("arm", "said"),
    [("on", "strategy loop on, as on 25% of"), ("off", "loop off, as on 75%"), ("", "no part, no id")],
)
def test_ps_says_on_which_side_of_a_field_test_the_device_is(
    cli: CliRunner, service: FakeService, arm: str, said: str
) -> None:
    service.more_state = {"field_test": {"name": "summer", "share": 0.25, "arm": arm, "reason": "no id"}}
    shown = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout
    assert "field test summer: " in shown
    assert said in shown


def test_ps_says_that_a_board_is_simulated_and_who_slows_the_engine_down(
    cli: CliRunner, service: FakeService
) -> None:
    assert "SIMULATED" not in cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout
    board = {"board": "pi5-bare", "title": "Raspberry Pi 5", "ambient_c": 25.0, "speed": 1.0, "passed_s": 9.0}
    heat = {"temp_c": 71.24, "chip_w": 4.0, "board_w": 6.54, "khz": {"policy0": 1500000}, "folder": "/run/x"}
    shares = {"prefill_share": 0.625, "decode_share": 0.8}
    service.more_state = {
        "simulated_board": {**board, **heat, **shares},
        "pace": {"board": {"prefill": 0.625, "decode": 0.8}},
    }
    shown = cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).stdout
    assert "SIMULATED board pi5-bare: 71.2 °C, policy0 1500 MHz, 6.5 W" in shown
    assert "paced by board: prompts 62%, answers 80% of the time" in shown


def test_ps_has_a_failing_status_when_the_service_is_not_ready(cli: CliRunner, service: FakeService) -> None:
    service.ready = False
    assert cli.invoke(app, ["ps", "--url", f"unix:{service.socket}"]).exit_code == 1
    result = cli.invoke(app, ["ps", "--json", "--url", f"unix:{service.socket}"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["models"][0]["name"] == "tiny-chat"


def test_one_question_prints_the_answer_and_nothing_else(service: FakeService) -> None:
    result = command(
        "run", "What", "is", "it?", "-t", "0", "--system", "Be brief.", MAGNITUDE_URL=f"unix:{service.socket}"
    )
    assert (result.returncode, result.stdout) == (0, "Paris.\n")
    (request,) = service.requests
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is it?"},
    ]
    assert request["temperature"] == 0


def test_a_question_may_come_through_a_pipe(service: FakeService) -> None:
    result = command("run", stdin="from a pipe\n", MAGNITUDE_URL=f"unix:{service.socket}")
    assert result.stdout == "Paris.\n"
    assert service.requests[0]["messages"] == [{"role": "user", "content": "from a pipe"}]


def test_an_answer_cut_at_the_limit_says_so(service: FakeService) -> None:
    service.finish = "length"
    result = command("run", "x", MAGNITUDE_URL=f"unix:{service.socket}")
    assert result.stdout == "Paris.\n"
    assert "--max-tokens" in result.stderr


def test_a_models_words_do_not_drive_the_terminal(service: FakeService) -> None:
    service.pieces = ["a\x1b[2Jb\n", "\tc\x07é"]
    assert command("run", "x", MAGNITUDE_URL=f"unix:{service.socket}").stdout == "a[2Jb\n\tcé\n"


def test_ctrl_c_stops_the_answer_and_reaches_the_service(service: FakeService) -> None:
    service.hang_after = 1
    with subprocess.Popen(
        [sys.executable, "-m", "magnitude.cli.main", "run", "x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "MAGNITUDE_URL": f"unix:{service.socket}"},
        # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:
        assert child.stdout is not None
        assert child.stdout.read(3) == "Par"
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=30)
    assert (rest, errors.strip(), child.returncode) == ("\n", "(stopped)", 130)
    assert service.hung_up.wait(10)


def test_wait_ends_when_the_service_is_ready_and_tells_what_to_type(cli: CliRunner, service: FakeService) -> None:
    result = cli.invoke(app, ["wait", "--how-to", "--url", f"unix:{service.socket}", "--listen", "127.0.0.1:9"])
    assert result.exit_code == 0
    assert "http://127.0.0.1:9/v1/chat/completions" in result.stdout
    assert "from openai import OpenAI" in result.stdout


def test_wait_gives_up_in_time_or_when_the_process_is_gone(service: FakeService) -> None:
    service.ready = False
    late = command("wait", "--timeout", "0", MAGNITUDE_URL=f"unix:{service.socket}")
    assert late.returncode == 1
    assert "engine starting" in late.stderr
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    result = command("wait", "--timeout", "600", "--while-pid", str(gone.pid), MAGNITUDE_URL=f"unix:{service.socket}")
    assert result.returncode == 1


def test_bench_states_conditions_and_medians(cli: CliRunner, service: FakeService) -> None:
    result = cli.invoke(app, ["bench", "-n", "3", "--json", "--url", f"unix:{service.socket}"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["median"]["rounds"] == 3
    assert (said["median"]["prompt_tokens"], said["median"]["cached_tokens"]) == (40, 8)
    assert "9.9.9" in said["conditions"]["service"]
    assert len({request["messages"][0]["content"] for request in service.requests}) == 4
    text = cli.invoke(app, ["bench", "-n", "1", "--url", f"unix:{service.socket}"]).stdout
    assert "tokens/s" in text
    assert "prompt 40 tokens (8 cached)" in text


def test_doctor_prints_findings_and_has_the_worst_ones_status(cli: CliRunner) -> None:
    result = cli.invoke(app, ["doctor", "--json"])
    findings = json.loads(result.stdout)
    worst = {"ok": 0, "notice": 0, "warning": 1, "error": 2}
    assert result.exit_code == max(worst[finding["level"]] for finding in findings)
    assert {finding["check"] for finding in findings} >= {"cores", "memory", "onnx_runtime", "service"}
    assert cli.invoke(app, ["doctor"]).exit_code == result.exit_code
