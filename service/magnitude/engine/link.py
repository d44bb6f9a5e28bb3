"""The engine's end of the socketpair: one reader thread, one writer at a time.

Nothing is buffered on the way out: `send` blocks while the service does not read, so that a slow service slows
the engine instead of growing its memory. The reader never waits for the writer, so both ends may write at the
same time without a deadlock.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from magnitude.engine.message import Message
from magnitude.engine.protocol import LoadModel, ToEngine
from magnitude.engine.wire import FrameReader, encode_frame
from magnitude.errors import EngineError

# One read. Larger than any message but tensors; those take a few more reads.
_READ_BYTES = 256 * 1024
# Descriptors may arrive before the frame that they belong to is complete, but never many.
_MAX_WAITING_FDS = 4


class ServiceGone(Exception):
    """Nobody reads at the other end any more."""


class Link:
    """Frames over a connected unix stream socket. `send` may be called from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._send_lock = threading.Lock()
        self._reader: FrameReader[ToEngine] = FrameReader(ToEngine)
        self._waiting_fds: deque[int] = deque()

    def send(self, *messages: Message) -> None:
        """Send messages, in one write. Raises `ServiceGone`, or `EngineError` when one is too large."""
        frame = b"".join(map(encode_frame, messages))
        try:
            with self._send_lock:
                self._sock.sendall(frame)
        except OSError as error:
            raise ServiceGone(f"the service is gone: {error}") from error

    def receive(self) -> list[tuple[ToEngine, int | None]] | None:
        """Wait for the next messages, each with the descriptor that came for it; None when the service is gone.

        Raises `EngineError` when the stream is broken.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        self._waiting_fds.extend(fds)
        if len(self._waiting_fds) > _MAX_WAITING_FDS:
            raise EngineError("descriptors arrive that no message asks for", code="protocol_broken")
        if not data:
            return None
        return [(message, self._fd_for(message)) for message in self._reader.feed(data)]

    def _fd_for(self, message: ToEngine) -> int | None:
        # The descriptor travels with the first byte of its frame, so it is here when the frame is complete.
        if isinstance(message, LoadModel) and message.kv is not None and self._waiting_fds:
            return self._waiting_fds.popleft()
        return None

    def close(self) -> None:
        for fd in self._waiting_fds:
            os.close(fd)
        self._waiting_fds.clear()
        self._sock.close()


def start_reader(
    link: Link,
    on_message: Callable[[ToEngine, int | None], None],
    on_end: Callable[[EngineError | None], None],
) -> threading.Thread:
    """Read in a thread of its own until the stream ends; then call `on_end` (with the error, if it broke)."""

    def read() -> None:
        try:
            while (received := link.receive()) is not None:
                for message, fd in received:
                    on_message(message, fd)
        except EngineError as error:
            on_end(error)
            return
        on_end(None)

    thread = threading.Thread(target=read, name="engine-reader", daemon=True)
    thread.start()
    return thread
