from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.firstboot import device, grow
from magnitude.units import host
from magnitude.units.host import HostCommandFailed, output_of, run_quietly
from magnitude.update import slots


def program(folder: Path, text: str) -> str:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_what_a_command_prints_is_returned_and_what_it_reads_is_what_it_was_given(tmp_path: Path) -> None:
    assert output_of((program(tmp_path, "cat; echo $1"), "too"), given="first\n") == "first\ntoo\n"
    # Nobody is asked: without anything given there is an end at once.
    assert output_of((program(tmp_path, "cat"),)) == ""


def test_bytes_that_are_no_text_are_no_failure(tmp_path: Path) -> None:
    assert output_of((program(tmp_path, r"printf 'a\377b'"),)) == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize(
    ("text", "said"),
    [("echo no card >&2; exit 3", "ended with status 3: no card"), ("exit 3", "ended with status 3$")],
    ids=["with a word", "without"],
)
def test_a_command_that_fails_is_told_with_its_status_and_its_words(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(HostCommandFailed, match=said):
        output_of((program(tmp_path, text),))


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(HostCommandFailed, match="did not end within"):
        output_of((program(tmp_path, "exec sleep 600"),), within_s=0.2)


def test_what_people_are_to_see_goes_past_the_program_also_when_it_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert output_of((program(tmp_path, "echo 50 %"),), to_terminal=True) == ""
    with pytest.raises(HostCommandFailed, match=r"ended with status 1$"):
        output_of((program(tmp_path, "echo broken >&2; exit 1"),), to_terminal=True)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("50 %\n", "broken\n")


def test_a_command_that_is_missing_is_named() -> None:
    assert run_quietly(("no-such-command", "x")) == "no-such-command is not installed"


@pytest.mark.parametrize("module", [device, grow, slots], ids=lambda module: module.__name__)
def test_commands_of_a_device_are_run_in_one_place(module: object) -> None:
    assert getattr(module, "output_of", None) is host.output_of
    assert not hasattr(module, "subprocess")
