"""Our engine process, over its own socketpair, with a KV memfd as the service makes it.

`ttft_s` and `decode_s` are taken on the service's side of the socket: the process, its messages and its sampler are
in them. `prefill_s` is the engine's own figure, since no other message marks that moment.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import magnitude
from bench.peers.worker import Times, serve
from magnitude.engine.kv_layout import KvLayout
from magnitude.engine.protocol import (
    PROTOCOL_VERSION,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Loaded,
    LoadModel,
    SamplerSettings,
    Shutdown,
    Tokens,
    ToService,
)
from magnitude.engine.wire import FrameReader, encode_frame
from magnitude.models.description import ModelDescription
from magnitude.models.manifest import describe, read_manifest
from magnitude.schedule.kv_memory import KvMemory

# What the service sends unless it is configured otherwise (`engine.prefill_chunk_size`).
PREFILL_CHUNK = 128


class Engine:
    """One engine process with one model in it."""

    def start(self) -> tuple[int, dict[str, str]]:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "magnitude.engine", "--fd", str(theirs.fileno())], pass_fds=(theirs.fileno(),)
        )
        theirs.close()
        self._reader: FrameReader[ToService] = FrameReader(ToService)
        self._arrived: list[ToService] = []
        self._requests = 0
        self._kv: KvMemory | None = None
        self._send(
            Hello(protocol_version=PROTOCOL_VERSION, software_version=magnitude.__version__, pid=self._process.pid)
        )
        hello = self._next()
        assert isinstance(hello, Hello)
        return hello.pid, {"magnitude": hello.software_version, "onnxruntime": hello.ort_version}

    def load(self, source: str, threads: int, context: int) -> dict[str, str]:
        self._model: ModelDescription = describe(Path(source), read_manifest(Path(source)))
        assert self._model.decoder is not None, f"{source} is no decoder"
        layout = KvLayout.of(self._model.decoder, slots=1, max_len=context)
        self._kv = KvMemory(self._model.name, layout)
        message = LoadModel(request_id=self._next_id(), model=self._model, threads=threads, kv=layout)
        frame = encode_frame(message)
        sent = socket.send_fds(self._sock, [frame], [self._kv.fd])
        self._sock.sendall(frame[sent:])
        answer = self._next()
        if not isinstance(answer, Loaded):
            raise RuntimeError(f"the engine answers {answer}")
        return {"KV": self._model.decoder.kv_type, "prefill chunk": str(PREFILL_CHUNK)}

    def generate(self, ids: list[int], steps: int) -> Times:
        request = Generate(
            request_id=self._next_id(),
            model=self._model.name,
            slot=0,
            prompt=ids,
            max_new_tokens=steps + 1,
            sampler=SamplerSettings(temperature=0.0),
            prefill_chunk=PREFILL_CHUNK,
        )
        begin = time.perf_counter()
        self._send(request)
        first = last = 0.0
        count = 0
        while True:
            message = self._next()
            if isinstance(message, Tokens):
                last = time.perf_counter()
                first = first or last
                count += len(message.ids)
            elif isinstance(message, Finished):
                break
            elif isinstance(message, Failed):
                raise RuntimeError(f"{message.code}: {message.message}")
        if count != steps + 1:
            raise RuntimeError(f"{count} tokens instead of {steps + 1}")
        return {"prefill_s": message.prefill_s, "ttft_s": first - begin, "decode_s": last - first}

    def stop(self) -> None:
        self._send(Shutdown())
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._sock.close()
        if self._kv is not None:
            self._kv.close()

    def _send(self, message: Hello | Generate | Shutdown) -> None:
        self._sock.sendall(encode_frame(message))

    def _next_id(self) -> int:
        self._requests += 1
        return self._requests

    def _next(self) -> ToService:
        """The next message that is no heartbeat."""
        while True:
            while self._arrived:
                message = self._arrived.pop(0)
                if not isinstance(message, Heartbeat):
                    return message
            data = self._sock.recv(1 << 18)
            if not data:
                raise RuntimeError(f"the engine left with status {self._process.wait()}")
            self._arrived.extend(self._reader.feed(data))


if __name__ == "__main__":
    serve(Engine())
