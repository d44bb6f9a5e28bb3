from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from magnitude.persist import StateFile, write_atomic


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    generation: int = 0
    filler: str = ""


BROKEN = {
    "empty": b"",
    "torn": b'{"a":1,',
    "nul": b"\0" * 4096,
    "list": b"[]",
    "nan": b'{"a":NaN}',
    "not utf-8": b'{"schema":1,"sha256":"\xff","value":1}',
    "checksum": b'{"schema":1,"sha256":"' + b"0" * 64 + b'","value":{"generation":1}}',
}


def state_file(folder: Path) -> StateFile[Memory]:
    return StateFile(folder / "state.json", Memory, schema=1)


def broken_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.broken-*"))


def test_a_saved_state_comes_back(tmp_path: Path) -> None:
    assert state_file(tmp_path).save(Memory(generation=7))
    again = state_file(tmp_path)
    assert again.load(Memory) == Memory(generation=7)
    assert again.source == "file"


def test_a_missing_file_is_no_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = state_file(tmp_path)
    assert state.load(Memory) == Memory()
    assert state.source == "default"
    assert not caplog.records
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_set_aside_and_the_previous_generation_is_used(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_file(tmp_path)
    state.save(Memory(generation=1))
    state.save(Memory(generation=2))
    state.path.write_bytes(content)
    assert state.load(Memory) == Memory(generation=1)
    assert state.source == "previous"
    assert len(caplog.records) == 1
    assert broken_files(tmp_path) == ["state.json.broken-1"]
    assert (tmp_path / "state.json.broken-1").read_bytes() == content


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_without_a_previous_generation_gives_the_default(tmp_path: Path, content: bytes) -> None:
    state = state_file(tmp_path)
    state.path.write_bytes(content)
    assert state.load(lambda: Memory(generation=-1)) == Memory(generation=-1)
    assert state.save(Memory(generation=3))
    assert state_file(tmp_path).load(Memory) == Memory(generation=3)


def test_at_most_two_broken_files_are_kept_the_newest_first(tmp_path: Path) -> None:
    state = state_file(tmp_path)
    for number in range(5):
        state.path.write_bytes(b"broken %d" % number)
        state.load(Memory)
    assert broken_files(tmp_path) == ["state.json.broken-1", "state.json.broken-2"]
    assert (tmp_path / "state.json.broken-1").read_bytes() == b"broken 4"
    assert (tmp_path / "state.json.broken-2").read_bytes() == b"broken 3"


def test_a_broken_current_file_does_not_push_out_a_good_previous_generation(tmp_path: Path) -> None:
    state = state_file(tmp_path)
    state.save(Memory(generation=1))
    state.save(Memory(generation=2))
    state.path.write_bytes(b"torn")
    state.save(Memory(generation=3))
    state.path.write_bytes(b"torn again")
    assert state.load(Memory) == Memory(generation=1)


def test_another_version_keeps_what_it_cannot_read_and_each_finds_its_own_again(tmp_path: Path) -> None:
    older, newer = state_file(tmp_path), StateFile(tmp_path / "state.json", Memory, schema=2)
    for generation in (1, 2):
        older.save(Memory(generation=generation))
    for visit in range(3):  # there and back, again and again
        assert newer.load(Memory).generation == visit * 10
        newer.save(Memory(generation=visit * 10 + 5))
        newer.save(Memory(generation=visit * 10 + 10))
        older = state_file(tmp_path)
        assert older.load(Memory).generation == 2 + visit
        assert older.source == "file"
        older.save(Memory(generation=3 + visit))
    assert broken_files(tmp_path) == []


def test_a_version_that_comes_back_prefers_its_last_state_to_an_earlier_one(tmp_path: Path) -> None:
    older = state_file(tmp_path)
    older.save(Memory(generation=1))
    older.save(Memory(generation=2))
    StateFile(tmp_path / "state.json", Memory, schema=2).load(Memory)  # and writes nothing
    assert state_file(tmp_path).load(Memory) == Memory(generation=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json"]


def test_a_file_that_cannot_be_read_is_survived_and_left_alone(tmp_path: Path) -> None:
    state = state_file(tmp_path)
    state.path.symlink_to("/proc/self/mem")  # reading it from the start fails with EIO
    assert state.load(Memory) == Memory()
    assert state.path.is_symlink()


def test_storage_that_refuses_is_said_once_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "magnitude")
    folder = tmp_path / "state"
    state = state_file(folder)  # no such folder: every write fails, as on a read-only card
    assert not state.save(Memory())
    assert not state.save(Memory())
    assert "cannot be written" in state.off
    assert len(caplog.records) == 1
    folder.mkdir()
    assert state.save(Memory(generation=1))
    assert state.off == ""
    assert len(caplog.records) == 2


def test_a_full_device_leaves_the_old_file_and_no_leftover(tmp_path: Path) -> None:
    target = tmp_path / "small"
    write_atomic(target, b"old")
    program = textwrap.dedent("""
        import pathlib, resource, signal, sys
        from magnitude.persist import write_atomic
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails with EFBIG half way through
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_atomic(pathlib.Path(sys.argv[1]), b"x" * 5000)
        except OSError:
            sys.exit(3)
    """)
    child = subprocess.run([sys.executable, "-c", program, str(target)], env=child_environment(), check=False)
    assert child.returncode == 3
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_write_atomic_sets_the_mode_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "secret"
    write_atomic(target, b"one", mode=0o600)
    write_atomic(target, b"two", mode=0o600)
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    """A child saves growing generations as fast as it can and is killed without warning, again and again."""
    program = textwrap.dedent("""
        import sys, msgspec
        from magnitude.persist import StateFile

        class Memory(msgspec.Struct, frozen=True, kw_only=True):
            generation: int = 0
            filler: str = ""

        state = StateFile(sys.argv[1], Memory, schema=1)
        generation = state.load(Memory).generation
        while True:
            generation += 1
            state.save(Memory(generation=generation, filler="x" * 20000))
            print(generation, flush=True)
    """)
    last = 0
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "state.json")],
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        ) as child:
            assert child.stdout is not None
            for _ in range(5):
                said = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
            said = int(rest[-1]) if rest else said
        state = state_file(tmp_path)
        now = state.load(Memory)
        assert state.source == "file"
        assert now.generation in (said, said + 1)  # killed between the rename and the word about it
        assert now.generation > last
        assert broken_files(tmp_path) == []
        last = now.generation
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "state.json.bak"}


def test_threads_that_save_at_once_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    state = state_file(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        saved = list(threads.map(lambda number: state.save(Memory(generation=number)), range(80)))
    assert all(saved)
    assert state.off == ""
    assert state_file(tmp_path).load(Memory).generation in range(80)
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "state.json.bak"}


def child_environment() -> dict[str, str]:
    import magnitude

    return {**os.environ, "PYTHONPATH": str(Path(magnitude.__file__).parent.parent)}
