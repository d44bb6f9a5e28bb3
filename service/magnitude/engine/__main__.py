"""`python -m magnitude.engine --fd N [--packed FOLDER] [--scratch FOLDER]`: the engine on the inherited socket with
descriptor N.

Exit statuses: 0 asked to leave or the service is gone, 71 out of memory, 76 broken stream, 78 the service
speaks another protocol version (see `process.py`).
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import onnxruntime

import magnitude
from magnitude.board.counters import Counters
from magnitude.engine import process
from magnitude.engine.comparing import same_results
from magnitude.engine.heartbeat import start_heartbeat
from magnitude.engine.link import Link, ServiceGone, start_reader
from magnitude.engine.loop import Arrived, EngineLoop
from magnitude.engine.packed_weights import PackedWeights
from magnitude.engine.protocol import PROTOCOL_VERSION, Hello, ToEngine
from magnitude.engine.sessions import PROVIDERS, prepare_runtime
from magnitude.engine.stats import Progress, read_cpu_features
from magnitude.errors import EngineError

log = logging.getLogger("magnitude.engine")

# The service says hello as soon as it has started the engine.
_HELLO_WITHIN_S = 30.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m magnitude.engine",
        description="The inference engine process. The service starts it; to start the service: magnitude serve.",
    )
    parser.add_argument("--fd", type=int, help="descriptor of the connected socket to the service")
    parser.add_argument("--packed", type=Path, help="folder where further sessions of a model keep packed weights")
    parser.add_argument("--scratch", type=Path, help="folder for files of a moment; off the flash if there is one")
    options = parser.parse_args(arguments)
    fd = options.fd
    if fd is None:
        parser.error("the service starts the engine, not a person; to start the service: magnitude serve")

    process.die_with_parent()
    process.go_first_for_memory()
    process.close_stdin()
    faulthandler.enable()  # SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL: the stacks go to stderr
    faulthandler.register(process.STACKS_SIGNAL)
    # Ctrl-C reaches the whole process group, a stop by systemd the whole control group. The service lets open
    # requests end first and needs its engine for that; then it says `Shutdown`, or its end of the socket closes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    prepare_runtime()

    try:
        link = Link(socket.socket(fileno=fd))
    except OSError as error:
        log.error("descriptor %d is no socket (%s): the service starts the engine, not a person", fd, error.strerror)
        return process.EXIT_PROTOCOL_BROKEN
    progress = Progress()
    packed = PackedWeights(options.packed, same_results) if options.packed is not None else None
    loop = EngineLoop(link.send, progress, packed=packed, scratch=options.scratch)
    stop = threading.Event()
    hellos: queue.SimpleQueue[Hello] = queue.SimpleQueue()
    greeted = False

    def on_message(message: ToEngine, message_fd: int | None) -> None:
        nonlocal greeted
        if isinstance(message, Hello) and not greeted:
            greeted = True
            hellos.put(message)
            return
        loop.post(Arrived(message, message_fd, time.monotonic()))

    def on_end(error: EngineError | None) -> None:
        if error is not None:
            log.error("%s", error)
            process.leave_now(process.EXIT_PROTOCOL_BROKEN)
        process.leave_now(0)

    try:
        # Before any session: threads that are there already are not counted.
        counters = Counters()
        link.send(
            Hello(
                protocol_version=PROTOCOL_VERSION,
                software_version=magnitude.__version__,
                pid=os.getpid(),
                ort_version=onnxruntime.__version__,
                providers=PROVIDERS,
                cpu_features=read_cpu_features(),
                not_counted={str(name): why for name, why in counters.missing.items()},
            )
        )
        start_reader(link, on_message, on_end)
        try:
            theirs = hellos.get(timeout=_HELLO_WITHIN_S)
        except queue.Empty:
            log.error("the service did not say hello within %.0f s", _HELLO_WITHIN_S)
            return process.EXIT_PROTOCOL_BROKEN
        if theirs.protocol_version != PROTOCOL_VERSION:
            log.error(
                "the service (%s) speaks protocol version %d, this engine (%s) version %d: "
                "install both from one package and restart the service",
                theirs.software_version,
                theirs.protocol_version,
                magnitude.__version__,
                PROTOCOL_VERSION,
            )
            return process.EXIT_VERSION_MISMATCH
        start_heartbeat(link, progress, stop, counters=counters)
        loop.run()
    except MemoryError:
        # Python itself ran dry; what else broke on the way is unknown, so a new process is the safe answer.
        log.error("out of memory: the engine leaves and has to be started again")
        return process.EXIT_OUT_OF_MEMORY
    except ServiceGone as error:
        log.info("%s", error)
    finally:
        stop.set()
    return 0


if __name__ == "__main__":
    # Straight out: the reader is blocked in a read, and ONNX Runtime's worker threads need no farewell.
    process.leave_now(main())
