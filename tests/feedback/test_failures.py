from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from magnitude.engine.protocol import Embed, Heartbeat, InferTensors, StepGroup, Steps, Tensor
from magnitude.feedback.bundles import (
    BundleRefused,
    FailureBundle,
    TensorShape,
    Victim,
    bundle_files,
    find_bundle,
    read_all,
    read_bundle,
    without_content,
)
from magnitude.feedback.circumstances import Circumstances
from magnitude.feedback.failures import HOUR_S, MAX_BUNDLES, MAX_PER_HOUR, RETRY_FIRST_S, FailureLimits, FailureLog
from magnitude.persist import sealed
from magnitude.supervise.loss import EngineLoss
from tests.feedback.failure_samples import SECRET_GRAMMAR, surroundings, victim
from tests.feedback.record_samples import MovingClocks

DAY_S = 86400.0
HANG = EngineLoss("no step for 61 s", "hang")
PLENTY = FailureLimits(reserve_bytes=0)
WITH_CONTENT = FailureLimits(reserve_bytes=0, keep_content=True)


def written(folder: Path, *victims: Victim, limits: FailureLimits = PLENTY, loss: EngineLoss = HANG) -> FailureBundle:
    failures = FailureLog(folder, limits, surroundings(), clocks=MovingClocks())
    failures.engine_lost(loss, victims)
    failures.close()
    return read_bundle(bundle_files(folder)[-1])


def test_a_loss_is_written_down_with_what_led_up_to_it(tmp_path: Path) -> None:
    clocks = MovingClocks()
    failures = FailureLog(tmp_path, PLENTY, surroundings(), clocks=clocks)
    group = StepGroup(model="m", kind="decode", rows=2, tokens=1, runs=30, total_s=0.9, max_s=0.04)
    for steps in range(3):
        clocks.passes(0.5)
        failures.beat(Heartbeat(steps=steps, open_requests=steps, busy_s=0.1, rss_bytes=1000))
        failures.runs(Steps(groups=[group]))
    failures.engine_lost(HANG, [victim()])
    failures.close()
    bundle = read_bundle(tmp_path / "000001-hang.json")
    assert bundle.loss == HANG
    assert bundle.bundle_id == "000001-hang"
    assert [beat.steps for beat in bundle.series] == [0, 1, 2]
    assert [beat.headroom_bytes for beat in bundle.series] == [1 << 30] * 3
    assert bundle.memory.step == "trim"
    assert bundle.last_runs[-1].groups == [group]
    assert bundle.last_lines == ["Fatal Python error: Segmentation fault"]
    assert bundle.models[0].facts.threads == 4
    assert bundle.circumstances.queue_depth == 3


def test_without_being_asked_no_content_of_a_request_is_kept(tmp_path: Path) -> None:
    bundle = written(tmp_path, victim(strikes=1, refused=True))
    shape = bundle.requests[0].shape
    assert (shape.prompt_tokens, shape.emitted_tokens, shape.max_new_tokens) == (3, 1, 20)
    assert (shape.grammar, shape.grammar_chars) == ("regex", len(SECRET_GRAMMAR))
    assert shape.refused
    assert shape.sampler is not None
    assert shape.sampler.seed == 9
    text = bundle_files(tmp_path)[0].read_text()
    assert "7700" not in text
    assert SECRET_GRAMMAR not in text
    assert bundle_files(tmp_path)[0].stat().st_mode & 0o777 == 0o600


def test_with_content_the_very_message_is_kept(tmp_path: Path) -> None:
    lost = victim()
    bundle = written(tmp_path, lost, limits=WITH_CONTENT)
    assert bundle.with_content
    assert bundle.requests[0].content == lost.message
    shared = msgspec.json.encode(without_content(bundle)).decode()
    assert "7700" not in shared
    assert SECRET_GRAMMAR not in shared
    assert bundle.requests[0].shape.ids_hash
    assert bundle.requests[0].shape.ids_hash not in shared


def test_content_that_is_too_large_is_left_out_and_this_is_said(tmp_path: Path) -> None:
    tensor = Tensor(name="x", dtype="uint8", shape=(8_000_000,), data=b"\1" * 8_000_000)
    image = InferTensors(request_id=2, model="m", inputs=[tensor])
    large = Victim(request_id=2, model="m", kind="infer", prompt_tokens=0, emitted_tokens=0, message=image)
    bundle = written(tmp_path, large, victim(1), limits=WITH_CONTENT)
    assert [request.content is not None for request in bundle.requests] == [False, True]
    assert bundle.requests[0].shape.tensors == [TensorShape(name="x", dtype="uint8", shape=(8_000_000,))]
    assert bundle.notes == ["the content of request 2 is too large to keep"]


def test_the_likeliest_culprit_comes_first(tmp_path: Path) -> None:
    bundle = written(tmp_path, victim(1), victim(2, strikes=1), victim(3, strikes=1, refused=True))
    assert [request.shape.request_id for request in bundle.requests] == [3, 2, 1]


def test_encoder_runs_keep_their_lengths(tmp_path: Path) -> None:
    message = Embed(request_id=1, model="m", inputs=[[5, 6, 7], [8]])
    lost = Victim(request_id=1, model="m", kind="embed", prompt_tokens=4, emitted_tokens=0, message=message)
    assert written(tmp_path, lost).requests[0].shape.input_tokens == [3, 1]


def test_a_planned_replacement_is_no_failure(tmp_path: Path) -> None:
    failures = FailureLog(tmp_path / "failures", PLENTY, surroundings())
    failures.engine_lost(EngineLoss("asked for", "recycled"), [victim()])
    failures.close()
    assert not (tmp_path / "failures").exists()


def test_an_engine_that_dies_at_each_start_does_not_wear_the_flash_out(tmp_path: Path) -> None:
    clocks = MovingClocks()
    failures = FailureLog(tmp_path, PLENTY, surroundings(), clocks=clocks)
    for _ in range(100):
        clocks.passes(30.0)
        failures.engine_lost(EngineLoss("status 1", "start"), [])
    clocks.passes(HOUR_S)
    failures.engine_lost(HANG, [])
    failures.close()
    files = bundle_files(tmp_path)
    assert len(files) == MAX_PER_HOUR + 1
    assert read_bundle(files[-1]).notes == [f"{100 - MAX_PER_HOUR} losses before this one were not written down"]


def test_old_failures_make_room_for_new_ones(tmp_path: Path) -> None:
    written(tmp_path, victim())
    size = bundle_files(tmp_path)[0].stat().st_size
    for _ in range(MAX_BUNDLES + 5):
        written(tmp_path, victim())
    files = bundle_files(tmp_path)
    assert len(files) == MAX_BUNDLES
    assert files[-1].name == f"{MAX_BUNDLES + 6:06d}-hang.json"
    few = FailureLimits(reserve_bytes=0, max_bytes=3 * size + 100)
    written(tmp_path, victim(), limits=few)
    assert sum(path.stat().st_size for path in bundle_files(tmp_path)) <= few.max_bytes


def test_failures_that_are_too_old_are_removed_with_the_next_one(tmp_path: Path) -> None:
    written(tmp_path, victim())
    for days, wall in ((29, True), (31, True), (31, False)):
        clocks = MovingClocks(boot_id="boot-2")
        clocks.wall_s = clocks.wall_s + days * DAY_S if wall else 1000.0
        failures = FailureLog(tmp_path, PLENTY, surroundings(), clocks=clocks)
        failures.engine_lost(HANG, [])
        failures.close()
        present = {path.name for path in bundle_files(tmp_path)}
        assert ("000001-hang.json" in present) == (days == 29)
    # The clock was not set at the last one: nothing was too old then.
    assert len(present) == 3


def test_a_full_disk_keeps_its_reserve_and_the_service_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = FailureLog(tmp_path, FailureLimits(reserve_bytes=1 << 60), surroundings())
    for _ in range(3):
        failures.engine_lost(HANG, [victim()])
        failures.close()
    assert bundle_files(tmp_path) == []
    assert "would stay free" in failures.off
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_folder_that_cannot_be_made_costs_the_bundle_only(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    failures = FailureLog(tmp_path / "state/failures", PLENTY, surroundings())
    failures.engine_lost(HANG, [victim()])
    failures.close()
    assert failures.off


def test_what_the_storage_refused_is_written_when_it_works_again(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    clocks = MovingClocks()
    failures = FailureLog(tmp_path / "state/failures", PLENTY, surroundings(), clocks=clocks)
    failures.engine_lost(HANG, [victim()])
    failures.close()
    assert failures.off
    (tmp_path / "state").unlink()
    alive = Heartbeat(steps=1, open_requests=0, busy_s=0.0, rss_bytes=1)
    failures.beat(alive)
    failures.close()
    assert failures.off  # not yet time
    clocks.passes(RETRY_FIRST_S)
    failures.beat(alive)
    failures.close()
    assert failures.off == ""
    assert [path.name for path in bundle_files(tmp_path / "state/failures")] == ["000001-hang.json"]


def test_a_failure_that_is_larger_than_all_of_them_may_be_is_left_out(tmp_path: Path) -> None:
    failures = FailureLog(tmp_path, FailureLimits(reserve_bytes=0, max_bytes=100), surroundings())
    failures.engine_lost(HANG, [victim()])
    failures.close()
    assert (failures.off, bundle_files(tmp_path)) == ("", [])


BROKEN = {"empty": b"", "torn": b'{"a":1,', "nul": b"\0" * 4096, "list": b"[]", "nan": b'{"a":NaN}'}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_bundle_is_told_and_hides_no_other(tmp_path: Path, content: bytes) -> None:
    written(tmp_path, victim())
    (tmp_path / "000002-oom.json").write_bytes(content)
    first, second = read_all(tmp_path)
    assert isinstance(first, FailureBundle)
    assert isinstance(second, BundleRefused)
    written(tmp_path, victim())
    assert bundle_files(tmp_path)[-1].name == "000003-hang.json"


def test_a_bundle_of_a_newer_version_is_refused_with_its_reason(tmp_path: Path) -> None:
    written(tmp_path, victim())
    path = bundle_files(tmp_path)[0]
    path.write_text(path.read_text().replace('"schema":1', '"schema":9'))
    with pytest.raises(BundleRefused, match="schema is 9"):
        read_bundle(path)


# What the first version said of the moment at which an engine was lost, under the name that it had there.
FIRST_SITUATION = {
    "queue_depth": 3,
    "running": 0,
    "engine_restarts": 0,
    "engine_rss_bytes": None,
    "memory_headroom_bytes": None,
    "memory_limit_bytes": None,
    "memory_step": "",
    "temperature_c": 61.5,
    "plan": None,
}


def test_a_bundle_of_the_first_version_is_still_read(tmp_path: Path) -> None:
    written(tmp_path, victim())
    path = bundle_files(tmp_path)[0]
    content = msgspec.json.decode(path.read_bytes())["value"]
    path.write_bytes(sealed({**content, "situation": FIRST_SITUATION}, schema=1))
    assert read_bundle(path).circumstances == Circumstances(queue_depth=3, temperature_c=61.5)


def test_a_bundle_is_found_by_its_number_its_id_and_its_path(tmp_path: Path) -> None:
    written(tmp_path, victim())
    path = tmp_path / "000001-hang.json"
    assert find_bundle("1", tmp_path) == find_bundle("000001-hang", tmp_path) == path
    assert find_bundle(str(path), tmp_path / "elsewhere") == path
    with pytest.raises(BundleRefused, match="no bundle 7"):
        find_bundle("7", tmp_path)


def test_half_written_files_of_a_killed_service_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".000001-hang.json.x.tmp").write_bytes(b"half")
    written(tmp_path, victim())
    assert not list(tmp_path.glob(".*"))
