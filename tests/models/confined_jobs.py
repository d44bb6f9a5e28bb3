"""Jobs for the sandbox's tests: what a child may do wrong. Run as `python -m confined_jobs`."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from magnitude.errors import ImportFailed
from magnitude.models.importing.sandbox import Reporter, serve


class Job(msgspec.Struct):
    do: str


def run(order: bytes, reporter: Reporter) -> Any:
    do = msgspec.json.decode(order, type=Job).do
    reporter.progress(0.5, "half")
    if do == "refuse":
        raise ImportFailed("no", hint="try", param="p")
    if do == "panic":
        raise BaseException("a parser panicked")
    if do == "eat":
        return len(bytearray(8 << 30))
    if do == "spin":
        while True:
            pass
    if do == "sleep":
        time.sleep(600)
    if do == "exit":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    if do == "babble":
        os.write(reporter._pipe.fileno(), b"\x00not json\n" * 100)
    if do.startswith("die"):
        os.kill(os.getpid(), int(do.removeprefix("die")))
        time.sleep(60)
    status = Path("/proc/self/status").read_text()
    return {
        "no_new_privs": "NoNewPrivs:\t1" in status,
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "cwd_first": "" in sys.path or str(Path.cwd()) == sys.path[0],
        "parent_signal": int(signal.SIGKILL),
    }


if __name__ == "__main__":
    sys.exit(serve(run))
