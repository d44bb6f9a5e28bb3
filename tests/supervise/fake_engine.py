"""An engine without models: a real process that speaks the real protocol and does as the prompt says.

The first id of a prompt is the instruction: 1 answers with the rest of the prompt, one id every 5 ms, again and
again up to the limit; 2 dies at once; 3 goes silent; 4 breathes but hangs in a graph run. A model called
`broken` cannot be loaded, `torn` never can, and `slow` takes for ever.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from magnitude.engine import protocol as p
from magnitude.engine.wire import FrameReader, encode_frame


class FakeEngine:
    def __init__(self, fd: int, protocol_version: int) -> None:
        self.sock = socket.socket(fileno=fd)
        self.lock = threading.Lock()
        self.cancelled: set[int] = set()
        self.busy_since: float | None = None
        self.silent = False
        self.steps = 0
        self.send(p.Hello(protocol_version=protocol_version, software_version="fake", pid=os.getpid()))
        threading.Thread(target=self.beat, daemon=True).start()

    def send(self, message: p.Message) -> None:
        with self.lock:
            if not self.silent:
                self.sock.sendall(encode_frame(message))

    def beat(self) -> None:
        while True:
            busy_s = time.monotonic() - self.busy_since if self.busy_since else 0.0
            self.send(p.Heartbeat(steps=self.steps, open_requests=0, busy_s=busy_s, rss_bytes=1))
            time.sleep(0.05)

    def serve(self) -> None:
        reader: FrameReader[p.ToEngine] = FrameReader(p.ToEngine)
        while True:
            data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 1)
            for fd in fds:
                os.close(fd)
            if not data:
                return
            for message in reader.feed(data):
                self.handle(message)

    def handle(self, message: p.ToEngine) -> None:
        match message:
            case p.LoadModel(request_id=request_id, model=model):
                if model.name == "slow":
                    return
                if model.name in {"broken", "torn"}:
                    self.send(
                        p.Failed(
                            request_id=request_id,
                            code="model_invalid",
                            message=f"{model.name} cannot be loaded",
                            permanent=model.name == "torn",
                        )
                    )
                else:
                    self.send(p.Loaded(request_id=request_id, model=model.name, load_s=0.0))
            case p.UnloadModel(request_id=request_id):
                self.send(p.Done(request_id=request_id))
            case p.Generate():
                threading.Thread(target=self.generate, args=(message,), daemon=True).start()
            case p.Embed(request_id=request_id, inputs=inputs):
                data = b"\0\0\x80\x3f" * len(inputs)
                self.send(p.Vectors(request_id=request_id, count=len(inputs), width=1, data=data, run_s=0.001))
            case p.Measure(request_id=request_id, rows=rows):
                self.send(p.Measured(request_id=request_id, step_s=tuple(0.01 for _ in rows)))
            case p.CancelRequest(target=target):
                self.cancelled.add(target)
            case p.Shutdown():
                os._exit(0)
            case _:
                pass

    def generate(self, task: p.Generate) -> None:
        match task.prompt[0]:
            case 2:
                os._exit(7)
            case 3:
                self.silent = True
                return
            case 4:
                self.busy_since = time.monotonic() - 3600
                return
        words = task.prompt[1:] or [0]
        self.send(
            p.PrefillProgress(request_id=task.request_id, done_tokens=len(task.prompt), total_tokens=len(task.prompt))
        )
        for position in range(len(task.emitted), task.max_new_tokens):
            if task.request_id in self.cancelled:
                self.cancelled.discard(task.request_id)
                self.finish(task, "cancelled", position - len(task.emitted))
                return
            time.sleep(0.005)
            self.steps += 1
            self.send(p.Tokens(request_id=task.request_id, ids=[words[position % len(words)]]))
        self.finish(task, "length", task.max_new_tokens - len(task.emitted))

    def finish(self, task: p.Generate, reason: p.FinishReason, new_tokens: int) -> None:
        self.send(
            p.Finished(
                request_id=task.request_id,
                reason=reason,
                prompt_tokens=len(task.prompt),
                new_tokens=new_tokens,
                wait_s=0.0,
                prefill_s=0.01,
                decode_s=0.005 * new_tokens,
            )
        )


if __name__ == "__main__":
    version = int(os.environ.get("FAKE_PROTOCOL_VERSION", p.PROTOCOL_VERSION))
    FakeEngine(int(sys.argv[sys.argv.index("--fd") + 1]), version).serve()
