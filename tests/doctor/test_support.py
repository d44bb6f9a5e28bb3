from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from magnitude.config import ApiKey, ServerSettings, Settings
from magnitude.config.load import load_text
from magnitude.doctor import DoctorContext
from magnitude.doctor.support import MAX_PART_BYTES, SupportContext, collect, write_archive
from magnitude.errors import ConfigError
from magnitude.feedback.bundles import FOLDER
from magnitude.feedback.failures import FailureLimits, FailureLog
from magnitude.feedback.record_file import RecordFile, RecordLimits
from magnitude.feedback.recorder import RECORDS_FILE
from magnitude.paths import find_paths
from magnitude.persist import StateFile
from magnitude.supervise.loss import EngineLoss
from tests.feedback.failure_samples import SECRET_GRAMMAR, SECRET_IDS, surroundings, victim
from tests.feedback.record_samples import MovingClocks, decision, row

KEY_HASH = "5e" * 32
KEY = "planted-key-of-the-environment"
PROMPT = "a planted prompt about pineapples"


class Small(msgspec.Struct):
    n: int = 0


def program(folder: Path, name: str, text: str) -> None:
    """A program that prints `text` and its arguments."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(text)
    path = folder / name
    path.write_text(f'#!/bin/sh\n/bin/cat "{folder}/{name}.txt"\necho "asked: $*"\n')
    path.chmod(0o755)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An installation in which everything happened that can be in an archive."""
    state = tmp_path / "state"
    file = RecordFile(state / RECORDS_FILE, RecordLimits(reserve_bytes=0))
    file.append([row(7), row(8, outcome="killed", code="engine_gone"), decision(7)])
    file.close()
    StateFile(state / "golden.json", Small, schema=1).save(Small())
    (state / "throughput.json").write_bytes(b'{"a":1,')
    (state / "kv").mkdir()
    (state / "kv/0123456789abcdef.kv").write_text(PROMPT)
    lines = ["Fatal Python error", f'content prompt="{PROMPT}"', f"api_key={KEY}"]
    failures = FailureLog(
        state / FOLDER,
        FailureLimits(reserve_bytes=0, keep_content=True),
        surroundings(last_lines=lambda: lines),
        clocks=MovingClocks(),
    )
    failures.engine_lost(EngineLoss("ended by SIGSEGV", "crash"), [victim()])
    failures.close()
    program(
        tmp_path / "bin",
        "journalctl",
        f"engine up pid=7\ncontent prompt={PROMPT!r} answer=x\nheader Bearer {KEY}\nsha256={KEY_HASH}\n",
    )
    program(tmp_path / "bin", "systemctl", "ActiveState=active\nNRestarts=3\n")
    return tmp_path


def context(home: Path, **fields: Any) -> SupportContext:
    keys = [ApiKey(name="kitchen", sha256=KEY_HASH)]
    doctor = DoctorContext(
        settings=Settings(server=ServerSettings(api_keys=keys)), paths=find_paths({"MAGNITUDE_HOME": str(home)})
    )
    values: dict[str, Any] = {
        "doctor": doctor,
        "silence": "no service answers",
        "search_path": str(home / "bin"),
        "environ": {"MAGNITUDE_API_KEY": KEY, "HOME": "/home/pi"},
        "clocks": MovingClocks(),
        **fields,
    }
    return SupportContext(**values)


def answer(path: str) -> str:
    return json.dumps({"asked": path, "authorization": f"Bearer {KEY}", "models": []})


@pytest.mark.parametrize("ask", [None, answer], ids=["the service is down", "the service runs"])
def test_neither_secrets_nor_what_people_said_are_in_the_archive(home: Path, ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "support.tar.gz"
    write_archive(path, collect(context(home, ask=ask)), 1.8e9)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        contents = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        everything = "\n".join(
            f"{name}\n{file.read().decode()}" for name, file in contents.items() if file is not None
        )
    for planted in (KEY_HASH, KEY, PROMPT, "pineapples", SECRET_GRAMMAR, *map(str, SECRET_IDS)):
        assert planted not in everything, planted
    # What helps is there.
    for wanted in ("Fatal Python error", "ended by SIGSEGV", "NRestarts=3", "engine up pid=7", "kitchen"):
        assert wanted in everything, wanted


def test_each_part_says_what_it_knows_while_the_service_is_down(home: Path) -> None:
    files = collect(context(home))
    assert "no service answers" in files["state.json"] + files["metrics.txt"]
    assert "NOTE: the service did not answer: no service answers" in files["README.txt"]
    records = json.loads(files["records.json"])
    assert records["counts"] == {"ok": 1, "killed": 1}
    assert [one["reason"] for one in json.loads(files["timeline.json"])["decisions"]] == ["7"]
    assert "golden.json: " in files["state-files.txt"]
    assert "throughput.json: 7 bytes" in files["state-files.txt"]
    assert "torn or not ours" in files["state-files.txt"]
    assert "kv: 1 saved conversations, 33 bytes" in files["state-files.txt"]
    assert "--unit magnitude.service" in files["journal.txt"]
    assert "--property=NRestarts" in files["units.txt"]
    bundle = json.loads(files["failures/000001-crash.json"])
    assert bundle["loss"]["cause"] == "crash"
    assert bundle["requests"][0]["content"] is None
    assert {finding["check"] for finding in json.loads(files["doctor.json"])} >= {"clock", "storage"}
    assert json.loads(files["versions.json"])["packages"]["msgspec"]


def test_a_running_service_is_asked(home: Path) -> None:
    files = collect(context(home, ask=answer))
    assert json.loads(files["state.json"])["asked"] == "/v1/magnitude/state"
    assert "/metrics" in files["metrics.txt"]
    assert "/v1/magnitude/records" in files["records.json"]
    assert "/v1/magnitude/timeline" in files["timeline.json"]


def test_one_part_that_fails_does_not_cost_the_others(home: Path) -> None:
    def broken(path: str) -> str:
        raise RuntimeError(f"nobody foresaw this, token={KEY}")

    for name in list((home / "state").glob("records.db*")):
        name.unlink()
    files = collect(context(home, ask=broken))
    assert "could not be gathered: RuntimeError" in files["state.json"]
    assert KEY not in files["state.json"]
    assert "NOTE: records.json could not be gathered" in files["README.txt"]
    assert files["journal.txt"]


def test_an_empty_machine_without_systemd_still_gives_an_archive(tmp_path: Path) -> None:
    files = collect(context(tmp_path / "nothing"))
    assert files["units.txt"] == "systemctl is not there\n"
    assert files["journal.txt"] == "journalctl is not there\n"
    assert json.loads(files["versions.json"])["magnitude"]


def test_a_flood_in_the_journal_is_cut_at_its_beginning(home: Path) -> None:
    program(
        home / "bin", "journalctl", "early line\n" + "x" * 100 + "\n" + "y\n" * (2 * MAX_PART_BYTES) + "the end\n"
    )
    journal = collect(context(home))["journal.txt"]
    assert len(journal) < MAX_PART_BYTES + 100
    assert "early line" not in journal
    assert "the end" in journal


def test_a_configuration_that_cannot_be_used_is_told_by_its_error(home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("engine: {threads: many}")
    doctor = msgspec.structs.replace(context(home).doctor, config_error=caught.value)
    assert "not usable" in collect(context(home, doctor=doctor))["configuration.yaml"]


def test_the_archive_does_not_follow_a_link_that_lies_in_wait(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_archive(tmp_path / "link", {}, 0.0)
    assert not (tmp_path / "link").is_symlink()
    assert not (tmp_path / "target").exists()


def test_who_has_the_file_open_that_the_archive_replaces_does_not_read_along(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_text("mine")
    path.chmod(0o666)
    with path.open() as file:
        write_archive(path, {}, 0.0)
        assert file.read() == "mine"
    assert path.stat().st_mode & 0o777 == 0o600


def test_links_in_the_state_folder_are_not_followed(home: Path) -> None:
    (home / "outside.json").write_text('{"x": 1}')
    (home / "state/link.json").symlink_to(home / "outside.json")
    assert "link.json" not in collect(context(home))["state-files.txt"]


def test_file_names_are_stable_and_text_is_utf8(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.tar.gz", {"x/y.txt": "größe\udcff"}, 1.8e9)
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "a.tar.gz").read_bytes())) as archive:
        (member,) = archive.getmembers()
        file = archive.extractfile(member)
        assert member.name == "magnitude-support/x/y.txt"
        assert file is not None
        assert file.read().decode() == "größe?"
