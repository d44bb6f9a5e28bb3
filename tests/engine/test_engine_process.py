"""A real process on a real socketpair: how it starts, ends, breathes, and what it does about bad requests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from engine_driver import PATIENCE_S, EngineDriver, KvFile
from tiny_decoder import write_decoder, write_encoder, write_matmul, write_tensors

from magnitude.engine.process import OOM_SCORE_ADJ
from magnitude.engine.protocol import (
    PROTOCOL_VERSION,
    Done,
    Drain,
    Drained,
    Embed,
    Failed,
    Finished,
    GrammarSpec,
    InferTensors,
    Loaded,
    Shutdown,
    Tensor,
    TensorsOut,
    Tokens,
    Trim,
    UnloadModel,
    Vectors,
)
from magnitude.engine.stats import parse_status
from magnitude.models.description import ModelDescription

NewKv = Callable[..., KvFile]


def test_it_says_hello_with_its_versions_and_leaves_on_shutdown(engine: EngineDriver):
    assert engine.hello is not None
    assert engine.hello.protocol_version == PROTOCOL_VERSION
    assert engine.hello.pid == engine.process.pid
    assert engine.hello.ort_version
    assert engine.hello.providers == ("CPUExecutionProvider",)
    assert engine.shut_down() == 0


def test_another_protocol_version_ends_it_with_78_and_one_line():
    with EngineDriver(protocol_version=PROTOCOL_VERSION + 1) as engine:
        text = engine.log_text()
        assert engine.process.returncode == 78
        assert len(text.splitlines()) == 1
        assert f"version {PROTOCOL_VERSION + 1}" in text


def test_a_broken_stream_ends_it(engine: EngineDriver):
    engine.sock.sendall(b"\xff\xff\xff\xff not a frame")
    assert engine.process.wait(PATIENCE_S) == 76


def test_a_descriptor_that_is_no_socket_is_an_error_in_one_line():
    run = subprocess.run(
        [sys.executable, "-m", "magnitude.engine", "--fd", "0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 76
    assert len(run.stderr.splitlines()) == 1


def test_a_person_who_starts_the_engine_is_told_what_to_start():
    run = subprocess.run(
        [sys.executable, "-m", "magnitude.engine"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "magnitude serve" in run.stderr


def test_it_leaves_at_once_when_the_service_closes_the_socket(tiny_engine: EngineDriver):
    tiny_engine.start([1, 2, 3], max_new_tokens=90)
    tiny_engine.sock.close()
    assert tiny_engine.process.wait(PATIENCE_S) == 0


def test_it_does_not_outlive_a_parent_that_is_killed():
    # The parent hands the other end to its own child too, so that the socket stays open after its death.
    parent = textwrap.dedent("""
        import socket, subprocess, sys, time
        ours, theirs = socket.socketpair()
        keeper = subprocess.Popen(["sleep", "60"], pass_fds=[ours.fileno()], stdout=subprocess.DEVNULL)
        command = [sys.executable, "-m", "magnitude.engine", "--fd", str(theirs.fileno())]
        engine = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL)
        ours.recv(1)
        print(engine.pid, keeper.pid, flush=True)
        time.sleep(60)
    """)
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    engine_pid, keeper_pid = map(int, process.stdout.readline().split())
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while _alive(engine_pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(keeper_pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_signals_meant_for_the_service_do_not_end_what_is_open(tiny: ModelDescription, new_kv: NewKv):
    """Ctrl-C goes to the process group and a stop by systemd to the control group: both reach the engine, too."""
    with EngineDriver() as engine:
        engine.load(tiny, new_kv(tiny))
        request_id = engine.start([1, 2, 3], max_new_tokens=90)
        engine.wait(Tokens, request_id)
        for number in (signal.SIGINT, signal.SIGTERM):
            engine.process.send_signal(number)
        assert engine.wait(Finished, request_id).new_tokens == 90
        engine.send(Shutdown())
        assert engine.process.wait(PATIENCE_S) == 0


def test_heartbeats_come_while_it_is_idle_and_count_the_steps(tiny_engine: EngineDriver):
    tiny_engine.generate([1, 2, 3])
    tiny_engine.heartbeats.clear()
    while len(tiny_engine.heartbeats) < 2:
        tiny_engine.stats()
        time.sleep(0.05)
    beat = tiny_engine.heartbeats[-1]
    assert beat.steps == tiny_engine.stats().steps >= 8
    assert beat.open_requests == 0
    assert beat.busy_s == 0
    assert beat.rss_bytes > 10_000_000


def test_draining_finishes_what_is_open_and_takes_nothing_new(tiny_engine: EngineDriver):
    request_id = tiny_engine.start([1, 2, 3], max_new_tokens=40)
    drain_id = tiny_engine.new_id()
    tiny_engine.send(Drain(request_id=drain_id))
    late = tiny_engine.start([1, 2, 3], slot=1)
    seen = []
    while not isinstance(seen[-1] if seen else None, Drained):
        seen.append(tiny_engine.next())
    assert [m.code for m in seen if isinstance(m, Failed) and m.request_id == late] == ["engine_draining"]
    (end,) = [m for m in seen if isinstance(m, Finished)]
    assert (end.request_id, end.new_tokens) == (request_id, 40)
    assert tiny_engine.shut_down() == 0


def test_a_model_that_does_not_load_fails_with_the_cause_and_the_engine_serves_on(
    engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv, folder: Path
):
    broken = write_decoder(folder)
    (folder / "model.onnx").write_bytes(b"")
    kv = new_kv(tiny)
    request_id = engine.send_load(broken, kv)
    failed = engine.next()
    assert isinstance(failed, Failed)
    assert (failed.request_id, failed.code, failed.permanent) == (request_id, "model_file_torn", True)
    without_memory = engine.send_load(tiny)
    failed = engine.next()
    assert isinstance(failed, Failed)
    assert failed.request_id == without_memory
    engine.load(tiny, kv)
    other_memory = engine.send_load(tiny, new_kv(tiny))
    failed = engine.next()
    assert isinstance(failed, Failed)
    assert (failed.request_id, failed.code) == (other_memory, "model_already_loaded")
    assert len(engine.generate([1, 2, 3])[0]) == 8


def test_loading_what_is_loaded_just_so_changes_nothing(engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv):
    kv = new_kv(tiny)
    first = engine.load(tiny, kv)
    ids = engine.generate([1, 2, 3])[0]
    again = engine.load(tiny, kv)
    assert (again.inputs, again.outputs) == (first.inputs, first.outputs)
    assert engine.generate([1, 2, 3])[0] == ids


def test_loading_says_what_the_graph_takes_and_gives(engine: EngineDriver, folder: Path):
    loaded = engine.load(write_tensors(folder))
    assert [(i.name, i.dtype, i.shape) for i in loaded.inputs] == [("x", "float32", (-1, 4))]
    assert [(o.name, o.dtype, o.shape) for o in loaded.outputs] == [
        ("y", "float32", (-1, 4)),
        ("count", "int64", (1,)),
    ]


def infer(engine: EngineDriver, rows: np.ndarray, outputs: list[str] | None = None) -> TensorsOut | Failed:
    request_id = engine.new_id()
    tensor = Tensor(name="x", dtype=rows.dtype.name, shape=rows.shape, data=rows.tobytes())
    engine.send(InferTensors(request_id=request_id, model="double", inputs=[tensor], outputs=outputs or []))
    message = engine.next()
    assert isinstance(message, (TensorsOut, Failed))
    assert message.request_id == request_id
    return message


def test_plain_tensors_go_in_and_out(engine: EngineDriver, folder: Path):
    engine.load(write_tensors(folder))
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    answer = infer(engine, rows)
    assert isinstance(answer, TensorsOut)
    assert [o.name for o in answer.outputs] == ["y", "count"]
    assert np.array_equal(np.frombuffer(answer.outputs[0].data, "<f4").reshape(3, 4), rows * 2)
    only = infer(engine, rows, ["count"])
    assert isinstance(only, TensorsOut)
    assert np.frombuffer(only.outputs[0].data, "<i8").tolist() == [3]
    for bad in (
        infer(engine, rows.astype(np.float64)),
        infer(engine, rows[:, :3].copy()),
        infer(engine, rows, ["z"]),
    ):
        assert isinstance(bad, Failed)
        assert bad.code == "invalid_request"


def test_an_embedding_of_many_texts_lets_a_generation_go_on_in_between(tiny_engine: EngineDriver, folder: Path):
    tiny_engine.load(write_encoder(folder))
    generation = tiny_engine.start([1, 2, 3], max_new_tokens=90)
    embed_id = tiny_engine.new_id()
    inputs = [[(i * 7 + j) % 250 for j in range(64)] for i in range(300)]
    tiny_engine.send(Embed(request_id=embed_id, model="tiny-encoder", inputs=inputs))
    kinds = []
    while "vectors" not in kinds:
        message = tiny_engine.next()
        if isinstance(message, Vectors):
            assert (message.count, message.width, len(message.data)) == (300, 8, 300 * 8 * 4)
            kinds.append("vectors")
        elif isinstance(message, Tokens):
            assert message.request_id == generation
            kinds.append("token")
    assert kinds.count("token") >= 30  # 300 texts of 64 tokens are 38 runs, with a step between each two


def test_requests_of_the_wrong_kind_are_refused(tiny_engine: EngineDriver, folder: Path):
    request_id = tiny_engine.new_id()
    tiny_engine.send(Embed(request_id=request_id, model="tiny", inputs=[[1]]))
    message = tiny_engine.next()
    assert isinstance(message, Failed)
    assert message.code == "model_kind_mismatch"


def test_unloading_ends_what_is_open_and_the_name_is_free_again(
    tiny_engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv
):
    request_id = tiny_engine.start([1, 2, 3], max_new_tokens=90)
    tiny_engine.wait(Tokens, request_id)
    unload = tiny_engine.new_id()
    tiny_engine.send(UnloadModel(request_id=unload, model="tiny"))
    _, end = tiny_engine.collect(request_id)
    assert isinstance(end, Failed)
    assert end.code == "model_unloaded"
    assert tiny_engine.wait(Done, unload)
    assert tiny_engine.stats().models == ()
    tiny_engine.load(tiny, new_kv(tiny))
    assert len(tiny_engine.generate([1, 2, 3])[0]) == 8


def open_files(engine: EngineDriver) -> int:
    return len(list(Path(f"/proc/{engine.process.pid}/fd").iterdir()))


def test_loading_and_unloading_many_times_does_not_climb(engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv):
    kv = new_kv(tiny)

    def cycle() -> None:
        engine.load(tiny, kv)
        engine.generate([1, 2, 3], max_new_tokens=4, grammar=GrammarSpec(kind="regex", text="[a-z]*"))
        unload = engine.new_id()
        engine.send(UnloadModel(request_id=unload, model="tiny"))
        engine.wait(Done, unload)

    for _ in range(3):
        cycle()
    anon_before, files_before = engine.stats().anon_bytes, open_files(engine)
    for _ in range(20):
        cycle()
    assert open_files(engine) == files_before
    # A leak of one model (weights, KV mapping or tokenizer: 100 KB at least) a cycle would be 2 MB and more.
    assert engine.stats().anon_bytes - anon_before < 2_000_000


def test_memory_is_flat_over_prompts_of_every_length(engine: EngineDriver, folder: Path, new_kv: NewKv):
    model = write_decoder(folder)
    engine.load(model, new_kv(model, max_len=256))

    def all_lengths() -> None:
        for length in range(1, 250, 6):
            engine.generate([length % 200] * length, max_new_tokens=2, prefill_chunk=250)

    all_lengths()
    before = engine.stats().anon_bytes
    for _ in range(3):
        all_lengths()
    assert engine.stats().anon_bytes - before < 2_000_000


def test_a_second_hello_or_a_message_for_nobody_does_no_harm(tiny_engine: EngineDriver):
    assert tiny_engine.hello is not None
    tiny_engine.send(msgspec.structs.replace(tiny_engine.hello, pid=1))
    tiny_engine.send(UnloadModel(request_id=tiny_engine.new_id(), model="nobody"))
    message = tiny_engine.next()
    assert isinstance(message, Failed)
    assert message.code == "model_not_found"


def test_a_frame_that_arrives_in_pieces_still_finds_its_descriptor(
    engine: EngineDriver, tiny: ModelDescription, new_kv: NewKv
):
    from magnitude.engine.protocol import GetStats, LoadModel
    from magnitude.engine.wire import encode_frame

    kv = new_kv(tiny)
    load = encode_frame(LoadModel(request_id=1, model=tiny, threads=1, kv=kv.layout))
    before = encode_frame(GetStats(request_id=2))
    engine.sock.sendall(before[:3])
    engine.sock.sendall(before[3:])
    socket.send_fds(engine.sock, [load[:5]], [kv.fd])
    for at in range(5, len(load), 100):
        engine.sock.sendall(load[at : at + 100])
    assert engine.wait(Loaded, 1)


def test_trimming_between_two_runs_changes_no_answer(tiny_engine: EngineDriver, folder: Path):
    tiny_engine.load(write_encoder(folder))

    def vectors() -> bytes:
        request_id = tiny_engine.new_id()
        inputs = [[1, 2, 3], [4, 5]]
        tiny_engine.send(Embed(request_id=request_id, model="tiny-encoder", inputs=inputs))
        return tiny_engine.wait(Vectors, request_id).data

    expected_ids, expected_rows = tiny_engine.generate([1, 5, 9], max_new_tokens=20)[0], vectors()
    running = tiny_engine.start([1, 5, 9], max_new_tokens=20)
    for _ in range(5):
        tiny_engine.send(Trim(request_id=tiny_engine.new_id()))
    assert tiny_engine.collect(running)[0] == expected_ids
    assert vectors() == expected_rows


def test_the_engine_is_the_first_to_go_when_memory_runs_out(engine: EngineDriver):
    assert Path(f"/proc/{engine.process.pid}/oom_score_adj").read_text() == f"{OOM_SCORE_ADJ}\n"


def anon_bytes(engine: EngineDriver) -> int:
    return parse_status(Path(f"/proc/{engine.process.pid}/status").read_text()).anon_bytes


def test_memory_comes_back_after_one_large_run(engine: EngineDriver, folder: Path):
    width = 512
    engine.load(write_matmul(folder, width))

    def run(rows: int) -> None:
        x = np.ones((rows, width), np.float32)
        request_id = engine.new_id()
        tensor = Tensor(name="x", dtype="float32", shape=x.shape, data=x.tobytes())
        engine.send(InferTensors(request_id=request_id, model="matmul", inputs=[tensor]))
        engine.wait(TensorsOut, request_id)

    for _ in range(3):
        run(1)
    before = anon_bytes(engine)
    run(20_000)  # 41 MB in, 41 MB out
    for _ in range(20):
        run(1)
    deadline = time.monotonic() + PATIENCE_S
    while anon_bytes(engine) > before + 8_000_000:
        assert time.monotonic() < deadline, "an idle engine keeps the memory of its largest run"
        time.sleep(0.1)
