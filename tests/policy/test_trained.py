"""The file of a trained table: what is written comes back, and everything else is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import MagnitudeError, RequestError
from magnitude.persist import sealed
from magnitude.policy.dump_exchange import parsed
from magnitude.policy.learned import Binding, Choice, Entry
from magnitude.policy.trained import (
    SCHEMA,
    ModelTable,
    Proof,
    Trained,
    write_trained,
)
from magnitude.policy.tree import default_tree

ENTRY = Entry(part="decode", key="rows=1 cores=4 clock=0.9", chosen=Choice(session=SessionSpec(threads=2)))
TRAINED = Trained(
    tables=(ModelTable(board="pi5", model="chat", model_hash="abc", entries=(ENTRY,), samples=9),),
    tree=default_tree(),
    proof=Proof(tasks=9, files=1, boards=("pi5",), tolerance=0.02),
)
BINDING = Binding(board="pi5", model="chat", model_hash="abc", ort_version="1.32.0", cpu_features=("asimd",))


def test_what_is_written_comes_back_with_the_same_id(tmp_path: Path) -> None:
    write_trained(tmp_path / "t.json", TRAINED)
    again = parsed((tmp_path / "t.json").read_bytes(), "t.json")
    assert isinstance(again, Trained)
    assert again == TRAINED
    assert again.trained_id == TRAINED.trained_id


def test_the_id_is_the_checksum_that_stands_in_the_file(tmp_path: Path) -> None:
    write_trained(tmp_path / "t.json", TRAINED)
    assert msgspec.json.decode((tmp_path / "t.json").read_bytes())["sha256"] == TRAINED.trained_id


def test_a_dump_of_the_same_board_and_model_begins_with_its_table() -> None:
    learned = TRAINED.learned_for(BINDING)
    assert learned is not None
    assert (learned.binding, learned.entries, learned.samples) == (BINDING, (ENTRY,), 9)


@pytest.mark.parametrize("changed", [{"board": "rock5b"}, {"model_hash": "abd"}])
def test_another_board_or_other_weights_get_no_table(changed: dict[str, str]) -> None:
    assert TRAINED.learned_for(msgspec.structs.replace(BINDING, **changed)) is None


def test_a_table_that_names_its_runtime_is_not_used_with_another() -> None:
    table = msgspec.structs.replace(TRAINED.tables[0], ort_version="1.31.0")
    assert not table.fits(BINDING)
    assert table.fits(msgspec.structs.replace(BINDING, ort_version="1.31.0"))


def _deep(levels: int) -> bytes:
    leaf = b'{"type":"leaf"}'
    split = b'{"type":"split","feature":"rows","below":1.0,"otherwise":' + leaf + b',"then":'
    node = split * levels + leaf + b"}" * levels
    body = b'{"tree":{"name":"t","prefill":' + leaf + b',"encode":' + leaf + b',"decode":' + node + b"}}"
    return sealed(msgspec.Raw(body), schema=SCHEMA)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"SQLite format 3\0",
        sealed(TRAINED, schema=SCHEMA)[:-20],
        sealed(TRAINED, schema=SCHEMA).replace(b"pi5", b"pi6"),
        sealed(TRAINED, schema=SCHEMA + 1),
        sealed({"tables": 3}, schema=SCHEMA),
        _deep(5_000),
    ],
    ids=["empty", "database", "torn", "changed", "newer", "other", "deep"],
)
def test_anything_else_is_refused_with_the_files_name_and_a_hint(content: bytes) -> None:
    with pytest.raises(RequestError, match=r"t\.json") as raised:
        parsed(content, "t.json")
    assert raised.value.hint


def test_a_folder_that_takes_no_file_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(MagnitudeError, match="cannot be written") as raised:
        write_trained(tmp_path / "none" / "t.json", TRAINED)
    assert raised.value.hint
