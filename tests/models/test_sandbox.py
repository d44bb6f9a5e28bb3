"""The confined child: what it may not do, and how its end becomes an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confined_jobs import Job

from magnitude.errors import ImportFailed
from magnitude.models.importing.sandbox import Limits, Progress, death, run_confined

LIMITS = Limits(data_bytes=1 << 30, cpu_s=20, wall_s=30.0)


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))


def run(do: str, limits: Limits = LIMITS, steps: list[Progress] | None = None) -> dict[str, object]:
    seen = [] if steps is None else steps
    answer = run_confined("confined_jobs", Job(do), limits=limits, what="file.gguf", progress=seen.append)
    result: dict[str, object] = json.loads(answer)
    return result


def test_a_job_answers_and_reports_its_progress() -> None:
    steps: list[Progress] = []
    assert run("work", steps=steps)["no_new_privs"]
    assert [step.text for step in steps] == ["half"]


def test_the_child_dumps_no_core_and_takes_no_module_from_the_working_folder() -> None:
    answer = run("work")
    assert answer["core"] == 0
    assert not answer["cwd_first"]


def test_a_refusal_keeps_message_hint_and_parameter() -> None:
    with pytest.raises(ImportFailed) as caught:
        run("refuse")
    assert (caught.value.message, caught.value.hint, caught.value.param) == ("no", "try", "p")


def test_a_panic_of_a_native_parser_is_a_failed_import() -> None:
    with pytest.raises(ImportFailed, match="a parser panicked"):
        run("panic")


def test_more_memory_than_allowed_is_refused_not_taken() -> None:
    with pytest.raises(ImportFailed, match="1024 MiB of memory"):
        run("eat")


def test_a_child_that_uses_too_much_cpu_is_stopped() -> None:
    with pytest.raises(ImportFailed, match="CPU time"):
        run("spin", Limits(data_bytes=1 << 30, cpu_s=1, wall_s=30.0))


def test_a_child_that_is_too_slow_is_stopped() -> None:
    with pytest.raises(ImportFailed, match="was stopped"):
        run("sleep", Limits(data_bytes=1 << 30, cpu_s=20, wall_s=1.0))


def test_a_child_that_leaves_without_an_answer_is_quoted() -> None:
    with pytest.raises(ImportFailed, match=r"status 3 .*last words"):
        run("exit")


def test_lines_that_are_no_reports_are_passed_over() -> None:
    assert run("babble")["no_new_privs"]


@pytest.mark.parametrize(
    ("signal", "message", "hint"),
    [(4, "SIGILL", "wheel does not fit"), (9, "SIGKILL", "memory"), (11, "SIGSEGV", "damaged")],
)
def test_a_child_that_dies_of_a_signal_names_the_file_the_cause_and_the_next_step(
    signal: int, message: str, hint: str
) -> None:
    with pytest.raises(ImportFailed, match=rf"file\.gguf.*{message}") as caught:
        run(f"die{signal}")
    assert hint in caught.value.hint


def test_an_unheard_of_signal_still_gives_an_error() -> None:
    assert "60" in death(-60, "", "f", LIMITS).message
