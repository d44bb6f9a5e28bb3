"""Learned strategies over restarts, upgrades, torn files, storage that refuses, and two services at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import magnitude
from magnitude.engine.session_spec import SessionSpec
from magnitude.persist import StateFile, sealed
from magnitude.policy.dumps import (
    GENERATIONS_KEPT,
    MOST_KEPT_BYTES,
    MOST_MODELS,
    RETIRED_KEPT,
    Dump,
    Dumps,
    Found,
    bounded,
)
from magnitude.policy.learned import SCHEMA, Binding, Choice, Entry, Evidence, Learned, Rejected, Verified
from magnitude.policy.pinned import Pinned
from magnitude.policy.trained import ModelTable, Proof, Trained

HERE = Binding(
    board="pi5-bare", model="smollm2", model_hash="a" * 64, ort_version="1.32.0", cpu_features=("asimd", "asimddp")
)
OTHER_RUNTIME = msgspec.structs.replace(HERE, ort_version="1.33.0")
OTHER_WEIGHTS = msgspec.structs.replace(HERE, model_hash="b" * 64)
OTHER_CPU = msgspec.structs.replace(HERE, cpu_features=("asimd",))
TWO = Choice(session=SessionSpec(threads=2))
FOUR = Choice(session=SessionSpec(threads=4, cpus=(4, 5, 6, 7)), chunk=128)

BROKEN = {
    "empty": b"",
    "torn": b'{"schema":1,"sha2',
    "nul": b"\0" * 4096,
    "list": b"[]",
    "not a number": b'{"a":NaN}',
    "wrong checksum": b'{"schema":1,"sha256":"' + b"0" * 64 + b'","value":{"generation":1}}',
    "another content": sealed({"a": 1}, schema=SCHEMA),
}


class WallClock:
    """Goes on by a second each time that it is looked at."""

    def __init__(self) -> None:
        self.now_s = 1.8e9

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


CLOCK = WallClock()


def dumps(folder: Path) -> Dumps:
    """As a new start of the service makes it."""
    return Dumps(folder, wall_clock=CLOCK)


def learned(samples: int = 100, binding: Binding = HERE, keys: int = 1) -> Learned:
    return Learned(
        binding=binding,
        entries=tuple(
            Entry(
                part="decode",
                key=f"rows={row + 1} cores=4 clock=0.9",
                chosen=TWO,
                evidence=(
                    Evidence(choice=TWO, cost_s=0.011, log_spread=0.1, weight=float(samples + row)),
                    Evidence(choice=FOUR, cost_s=0.016, log_spread=0.1, weight=3.0),
                ),
            )
            for row in range(keys)
        ),
        rejected=(Rejected(part="decode", key="", choice=FOUR, reason="tasks timed out"),),
        verified=(Verified(session=SessionSpec(threads=2), passed=True, equal=True),),
        samples=samples,
    )


def same(found: Learned | None, expected: Learned) -> bool:
    """But for when it was saved."""
    return found is not None and msgspec.structs.replace(found, saved_at_s=expected.saved_at_s) == expected


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_learned_is_there_after_a_restart_exactly(tmp_path: Path) -> None:
    assert dumps(tmp_path).save(learned())
    found = dumps(tmp_path).load(HERE)
    assert same(found.learned, learned())
    assert (found.prior, found.why) == (None, "")
    assert names(tmp_path / "strategies" / "pi5-bare" / ("a" * 64)) == ["learned.json"]


def test_nothing_learned_is_no_event_and_writes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert dumps(tmp_path).load(HERE) == Found()
    assert not caplog.records
    assert names(tmp_path) == []


@pytest.mark.parametrize("changed", [OTHER_RUNTIME, msgspec.structs.replace(HERE, kernel_version="0.3")])
def test_another_runtime_retires_it_says_why_and_leaves_a_hint(
    tmp_path: Path, changed: Binding, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "magnitude")
    dumps(tmp_path).save(learned())
    for _ in range(2):  # the hint is there until something is learned anew
        found = dumps(tmp_path).load(changed)
        assert found.learned is None
        assert found.prior is not None
        assert found.prior.binding == changed
        assert [each.weight for each in found.prior.entries[0].evidence] == [1.0, 1.0]
        assert (found.prior.verified, found.prior.rejected) == ((), ())
        assert " -> " in found.why
    assert len([record for record in caplog.records if "retired" in record.message]) == 1
    assert names(dumps(tmp_path).folder_of(HERE)) == ["retired-1.json"]


def test_the_line_about_a_change_names_both_versions(tmp_path: Path) -> None:
    dumps(tmp_path).save(learned())
    assert dumps(tmp_path).load(OTHER_RUNTIME).why.startswith("ONNX Runtime 1.32.0 -> 1.33.0: ")


def test_another_cpu_retires_it_and_takes_nothing_from_it(tmp_path: Path) -> None:
    dumps(tmp_path).save(learned())
    found = dumps(tmp_path).load(OTHER_CPU)
    assert (found.learned, found.prior) == (None, None)
    assert "CPU features -asimddp" in found.why
    assert dumps(tmp_path).load(OTHER_CPU).prior is None


def test_another_board_sees_nothing_of_it(tmp_path: Path) -> None:
    dumps(tmp_path).save(learned())
    assert dumps(tmp_path).load(msgspec.structs.replace(HERE, board="rock5b")) == Found()
    assert same(dumps(tmp_path).load(HERE).learned, learned())


def test_new_weights_of_the_same_model_get_the_newest_hint_and_the_old_ones_keep_theirs(tmp_path: Path) -> None:
    older = msgspec.structs.replace(HERE, model_hash="c" * 64)
    dumps(tmp_path).save(learned(1, older))
    dumps(tmp_path).save(learned(2))
    dumps(tmp_path).save(learned(3, msgspec.structs.replace(HERE, model_hash="d" * 64, model="another")))
    found = dumps(tmp_path).load(OTHER_WEIGHTS)
    assert found.prior is not None
    assert len(found.prior.entries) == 1
    assert found.why.startswith(f"weights {'a' * 12} -> {'b' * 12}")
    assert same(dumps(tmp_path).load(HERE).learned, learned(2))


def test_who_goes_back_to_the_earlier_runtime_finds_what_was_learned_with_it(tmp_path: Path) -> None:
    dumps(tmp_path).save(learned(1))
    new = dumps(tmp_path)
    new.load(OTHER_RUNTIME)
    new.save(learned(2, OTHER_RUNTIME))
    back = dumps(tmp_path)
    found = back.load(HERE)
    assert same(found.learned, learned(1))
    assert "generation 1" in found.why
    assert back.save(learned(5))
    assert same(dumps(tmp_path).load(HERE).learned, learned(5))
    assert same(dumps(tmp_path).load(OTHER_RUNTIME).learned, learned(2, OTHER_RUNTIME))


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_torn_dump_gives_the_generation_before_and_is_set_aside(tmp_path: Path, content: bytes) -> None:
    for samples in (1, 2):
        dumps(tmp_path).save(learned(samples))
    folder = dumps(tmp_path).folder_of(HERE)
    (folder / "learned.json").write_bytes(content)
    assert same(dumps(tmp_path).load(HERE).learned, learned(1))
    assert (folder / "learned.json.broken-1").read_bytes() == content
    assert dumps(tmp_path).save(learned(3))
    assert same(dumps(tmp_path).load(HERE).learned, learned(3))


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_with_the_generation_before_torn_too_the_newest_numbered_one_counts(tmp_path: Path, content: bytes) -> None:
    for samples in (1, 2, 3):
        dumps(tmp_path).save(learned(samples))
    folder = dumps(tmp_path).folder_of(HERE)
    for file in ("learned.json", "learned.json.bak", "generation-2.json"):
        (folder / file).write_bytes(content)
    found = dumps(tmp_path).load(HERE)
    assert same(found.learned, learned(1))
    assert "generation 1" in found.why


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_with_everything_torn_the_service_starts_anew_and_saves(tmp_path: Path, content: bytes) -> None:
    dumps(tmp_path).save(learned(1))
    folder = dumps(tmp_path).folder_of(HERE)
    for file in ("learned.json", "pin.json", "generation-1.json", "retired-1.json"):
        (folder / file).write_bytes(content)
    again = dumps(tmp_path)
    assert again.load(HERE) == Found()
    assert again.pinned(HERE) is None
    assert [kept.dump for kept in again.all()] == []
    assert again.save(learned(2))
    assert same(dumps(tmp_path).load(HERE).learned, learned(2))


def test_what_a_later_version_of_the_program_wrote_waits_for_it(tmp_path: Path) -> None:
    dumps(tmp_path).save(learned(1))
    folder = dumps(tmp_path).folder_of(HERE)
    later = sealed(Dump(generation=9, learned=learned(9)), schema=SCHEMA + 1)
    (folder / "learned.json").write_bytes(later)
    assert dumps(tmp_path).load(HERE) == Found()
    assert (folder / f"learned.json.schema-{SCHEMA + 1}").read_bytes() == later


def test_a_run_of_the_service_is_one_generation_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    runs = GENERATIONS_KEPT + 3
    for run in range(1, runs + 1):
        service = dumps(tmp_path)
        service.load(HERE)
        for save in range(3):
            service.save(learned(run * 10 + save))
    (kept,) = dumps(tmp_path).all()
    assert kept.dump is not None
    assert kept.dump.generation == runs
    assert kept.generations == tuple(range(runs - GENERATIONS_KEPT, runs))
    before = dumps(tmp_path).generation(Path(kept.folder), runs - 1)
    assert before is not None
    assert before.learned.samples == (runs - 1) * 10 + 2


def test_only_the_last_runtimes_are_kept(tmp_path: Path) -> None:
    for minor in range(30, 36):
        service = dumps(tmp_path)
        binding = msgspec.structs.replace(HERE, ort_version=f"1.{minor}.0")
        service.load(binding)
        service.save(learned(1, binding))
    (kept,) = dumps(tmp_path).all()
    assert [dump.learned.binding.ort_version for dump in kept.retired] == ["1.33.0", "1.34.0"]
    assert len(kept.retired) == RETIRED_KEPT


def test_all_files_of_a_model_together_stay_small(tmp_path: Path) -> None:
    large = learned(keys=800)  # not far from the largest that is kept
    assert bounded(large) == large
    for samples in range(GENERATIONS_KEPT + 2):
        service = dumps(tmp_path)
        service.load(HERE)
        service.save(msgspec.structs.replace(large, samples=samples))
    files = [file for file in dumps(tmp_path).folder_of(HERE).iterdir() if file.name.startswith("generation-")]
    assert files
    assert sum(file.stat().st_size for file in files) <= MOST_KEPT_BYTES


@given(st.lists(st.integers(1, 10_000), max_size=12, unique=True), st.integers(200, 4000))
def test_too_large_a_table_loses_what_is_known_least(weights: list[int], most_bytes: int) -> None:
    entries = tuple(
        Entry(
            part="decode", key=f"rows={weight}", chosen=TWO, evidence=(Evidence(choice=TWO, cost_s=1, weight=weight),)
        )
        for weight in weights
    )
    before = Learned(binding=HERE, entries=entries)
    after = bounded(before, most_bytes)
    assert len(msgspec.json.encode(after)) <= most_bytes or not after.entries
    kept = [entry.evidence[0].weight for entry in after.entries]
    assert [weight for weight in weights if weight in kept] == kept  # in their order
    assert not kept or min(kept) > max((weight for weight in weights if weight not in kept), default=0)


def test_models_that_are_gone_make_room_for_new_ones_but_not_what_a_person_fixed(tmp_path: Path) -> None:
    first = msgspec.structs.replace(HERE, model_hash="0" * 64)
    service = dumps(tmp_path)
    service.save(learned(1, first))
    service.pin(first, Pinned(board=HERE.board, model=HERE.model, chunk=64))
    for number in range(1, MOST_MODELS + 4):
        service.save(learned(number, msgspec.structs.replace(HERE, model_hash=f"{number:064}")))
    folders = names(tmp_path / "strategies" / HERE.board)
    assert len(folders) <= MOST_MODELS + 1
    assert "0" * 64 in folders
    assert f"{MOST_MODELS + 3:064}" in folders


def test_names_that_are_no_file_names_stay_inside_and_apart(tmp_path: Path) -> None:
    service = dumps(tmp_path)
    boards = ["../../etc", "Raspberry Pi 5 Model B", "Raspberry Pi 5 (Model B)", "", ".", "x" * 300]
    for number, board in enumerate(boards):
        assert service.save(learned(number, msgspec.structs.replace(HERE, board=board)))
    for number, board in enumerate(boards):
        binding = msgspec.structs.replace(HERE, board=board)
        assert dumps(tmp_path).folder_of(binding).parent.parent == tmp_path / "strategies"
        assert same(dumps(tmp_path).load(binding).learned, learned(number, binding))
    assert len(names(tmp_path / "strategies")) == len(boards)


# --- storage that refuses ---


def test_storage_that_refuses_is_said_once_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = dumps(tmp_path)
    (tmp_path / "strategies").write_text("in the way")
    assert service.load(HERE) == Found()
    assert [service.save(learned(number)) for number in range(3)] == [False] * 3
    assert not service.pin(HERE, Pinned(board="pi5-bare", model="smollm2", chunk=64))
    assert "cannot be written" in service.off
    assert len(caplog.records) == 1
    (tmp_path / "strategies").unlink()
    assert service.save(learned(4))
    assert service.off == ""


def test_a_read_only_folder_still_gives_what_was_learned_and_hints_after_an_upgrade(tmp_path: Path) -> None:
    for samples in (1, 2):
        dumps(tmp_path).save(learned(samples))
    folder = dumps(tmp_path).folder_of(HERE)
    for level in (tmp_path, *folder.relative_to(tmp_path).parents, folder.relative_to(tmp_path)):
        (tmp_path / level).chmod(0o555)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    program = textwrap.dedent("""
        import os, sys, msgspec
        from pathlib import Path
        from magnitude.policy.dumps import Dumps
        from magnitude.policy.learned import Binding
        os.chdir(sys.argv[1])
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write anywhere
        binding = msgspec.json.decode(sys.argv[2], type=Binding)
        dumps = Dumps(Path("."))
        found = dumps.load(binding)
        saved = dumps.save(found.learned)
        upgraded = dumps.load(msgspec.structs.replace(binding, ort_version="1.33.0"))
        print(found.learned.samples, saved, bool(dumps.off), upgraded.learned, len(upgraded.prior.entries))
    """)
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), msgspec.json.encode(HERE)],
        env={**os.environ, "PYTHONPATH": str(Path(magnitude.__file__).parent.parent)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for level in (tmp_path, folder.parent.parent, folder.parent, folder):
        level.chmod(0o755)  # so that it can be removed
    assert child.stdout.split() == ["2", "False", "True", "None", "1"]
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


# --- two at once ---


def test_what_another_imported_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    service, verb = dumps(tmp_path), dumps(tmp_path)
    service.load(HERE)
    service.save(learned(1))
    assert not service.overtaken(HERE)
    verb.replace(learned(1000))
    assert service.overtaken(HERE)
    assert not service.save(learned(2))
    assert service.off == ""  # the storage is well
    assert same(service.load(HERE).learned, learned(1000))
    assert service.save(learned(1001))
    assert same(dumps(tmp_path).load(HERE).learned, learned(1001))


def test_a_reset_begins_anew_and_keeps_what_there_was(tmp_path: Path) -> None:
    dumps(tmp_path).save(learned(7))
    assert dumps(tmp_path).reset(HERE)
    found = dumps(tmp_path).load(HERE)
    assert same(found.learned, Learned(binding=HERE))
    (kept,) = dumps(tmp_path).all()
    before = dumps(tmp_path).generation(Path(kept.folder), kept.generations[-1])
    assert before is not None
    assert same(before.learned, learned(7))


def test_many_starts_at_once_leave_one_whole_dump(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:

        def start(number: int) -> bool:
            service = dumps(tmp_path)
            service.load(HERE)
            return service.save(learned(number)) or service.overtaken(HERE)

        assert all(threads.map(start, range(40)))
    folder = dumps(tmp_path).folder_of(HERE)
    assert dumps(tmp_path).load(HERE).learned is not None
    assert not [name for name in names(folder) if "broken" in name or name.startswith(".")]


def test_processes_that_save_at_once_leave_one_whole_dump(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys, msgspec
        from pathlib import Path
        from magnitude.policy.dumps import Dumps
        from magnitude.policy.learned import Binding, Learned
        binding = msgspec.json.decode(sys.argv[2], type=Binding)
        dumps = Dumps(Path(sys.argv[1]))
        for samples in range(20):
            dumps.load(binding)
            assert dumps.save(Learned(binding=binding, samples=samples)) or dumps.overtaken(binding), dumps.off
    """)
    environment = {**os.environ, "PYTHONPATH": str(Path(magnitude.__file__).parent.parent)}
    command = [sys.executable, "-c", program, str(tmp_path), msgspec.json.encode(HERE).decode()]
    children = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert dumps(tmp_path).load(HERE).learned is not None
    assert not [name for name in names(dumps(tmp_path).folder_of(HERE)) if "broken" in name or name.startswith(".")]


def test_a_cut_between_the_two_steps_of_retiring_loses_nothing(tmp_path: Path) -> None:
    dumps(tmp_path).save(learned(1))
    folder = dumps(tmp_path).folder_of(HERE)
    current = (folder / "learned.json").read_bytes()
    dumps(tmp_path).load(OTHER_RUNTIME)
    (folder / "learned.json").write_bytes(current)  # as if it had not been removed any more
    again = dumps(tmp_path)
    assert again.load(OTHER_RUNTIME).prior is not None
    assert again.save(learned(2, OTHER_RUNTIME))
    assert same(dumps(tmp_path).load(HERE).learned, learned(1))


# --- what was trained off the device ---


def trained(binding: Binding = HERE) -> Trained:
    entry = Entry(part="decode", key="rows=9 cores=4 clock=0.9", chosen=FOUR, origin="trained")
    table = ModelTable(board=binding.board, model=binding.model, model_hash=binding.model_hash, entries=(entry,))
    return Trained(tables=(table,), proof=Proof(tasks=1, files=1, boards=(binding.board,), tolerance=0.02))


def test_an_installed_table_is_used_where_nothing_was_learned_and_only_where_it_fits(tmp_path: Path) -> None:
    assert dumps(tmp_path).install(trained())
    assert dumps(tmp_path).trained() == trained()
    found = dumps(tmp_path).load(HERE)
    assert found.learned is not None
    assert [entry.origin for entry in found.learned.entries] == ["trained"]
    assert trained().trained_id[:12] in found.why
    assert dumps(tmp_path).load(OTHER_WEIGHTS) == Found()
    dumps(tmp_path).save(learned())
    assert same(dumps(tmp_path).load(HERE).learned, learned())
    assert dumps(tmp_path).install(None)
    assert dumps(tmp_path).trained() is None


def test_a_torn_table_is_as_good_as_none(tmp_path: Path) -> None:
    dumps(tmp_path).install(trained())
    (tmp_path / "strategies" / "trained.json").write_bytes(b'{"schema":1,')
    assert dumps(tmp_path).trained() is None
    assert dumps(tmp_path).load(HERE) == Found()


# --- what a person has fixed ---


def test_a_pin_outlives_runtime_and_weights_until_it_is_taken_back(tmp_path: Path) -> None:
    pinned = Pinned(board="pi5-bare", model="smollm2", decode=SessionSpec(threads=2))
    assert dumps(tmp_path).pin(HERE, pinned)
    for binding in (HERE, OTHER_RUNTIME, OTHER_CPU, OTHER_WEIGHTS):
        found = dumps(tmp_path).pinned(binding)
        assert found is not None
        assert found.decode == SessionSpec(threads=2)
    for other in ({"board": "rock5b"}, {"model": "another", "model_hash": "b" * 64}):
        assert dumps(tmp_path).pinned(msgspec.structs.replace(HERE, **other)) is None
    assert dumps(tmp_path).pin(OTHER_WEIGHTS, None)
    assert dumps(tmp_path).pinned(HERE) is None


def test_a_newer_pin_takes_the_place_of_an_older_one_for_earlier_weights(tmp_path: Path) -> None:
    service = dumps(tmp_path)
    service.pin(HERE, Pinned(board="pi5-bare", model="smollm2", chunk=64))
    service.pin(OTHER_WEIGHTS, Pinned(board="pi5-bare", model="smollm2", chunk=256))
    for binding in (HERE, OTHER_WEIGHTS):
        found = service.pinned(binding)
        assert found is not None
        assert found.chunk == 256


def test_a_dump_is_an_ordinary_state_file(tmp_path: Path) -> None:
    """So that what holds for those under a power cut holds here."""
    dumps(tmp_path).save(learned(1))
    file = StateFile(dumps(tmp_path).folder_of(HERE) / "learned.json", Dump, schema=SCHEMA)
    assert same(file.load(lambda: Dump(generation=0, learned=Learned(binding=OTHER_CPU))).learned, learned(1))
