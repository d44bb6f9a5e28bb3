"""The service's end of the socketpair: frames out, messages in, on the event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from magnitude.engine.message import Message
from magnitude.engine.protocol import ToService
from magnitude.engine.wire import FrameReader, encode_frame
from magnitude.errors import EngineError

log = logging.getLogger("magnitude.engine")

# Large enough for a batch of embeddings in few reads, small enough to stay off the heap's large-block path.
READ_BYTES = 1 << 18
# Why a connection ended that ended in order, as it does with a process that dies.
CLOSED = "the engine closed its connection"


class _Broken(Exception):
    """The stream is not what the protocol says."""


class EngineLink:
    """One connection to one engine process.

    `on_message` is called on the event loop for each message, in order; `on_closed` once, with a reason, when
    the engine is gone or what it sends cannot be understood.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[ToService], None],
        on_closed: Callable[[str], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_closed = on_closed
        self._outgoing: asyncio.Queue[tuple[bytes, int | None]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._write())]

    def send(self, message: Message, fd: int | None = None) -> None:
        """Queue `message`; `fd` travels with it (the caller keeps its own copy open)."""
        if not self._closed:
            self._outgoing.put_nowait((encode_frame(message), fd))

    def close(self) -> None:
        """Stop both directions without calling `on_closed`."""
        self._closed = True
        loop = asyncio.get_running_loop()
        # The tasks take their descriptor out of the loop only when they run again; by then its number may belong
        # to somebody else's connection.
        loop.remove_reader(self._sock)
        loop.remove_writer(self._sock)
        for task in self._tasks:
            task.cancel()
        self._sock.close()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        reader: FrameReader[ToService] = FrameReader(ToService)
        reason = CLOSED
        try:
            while data := await loop.sock_recv(self._sock, READ_BYTES):
                for message in self._understood(reader, data):
                    self._on_message(message)
        except OSError as error:
            reason = f"reading from the engine failed: {error}"
        except _Broken as error:
            reason = f"the engine sent what cannot be understood: {error}"
        except Exception:
            # Nobody awaits this task: an error that ended it in silence would leave a connection that nobody reads.
            log.exception("handling a message of the engine failed")
            reason = "a message of the engine could not be handled"
        self._ended(reason)

    @staticmethod
    def _understood(reader: FrameReader[ToService], data: bytes) -> list[ToService]:
        try:
            return reader.feed(data)
        except EngineError as error:
            raise _Broken(error.message) from error

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                frame, fd = await self._outgoing.get()
                if fd is not None:
                    sent = await self._send_with_fd(frame, fd)
                    frame = frame[sent:]
                await loop.sock_sendall(self._sock, frame)
        except OSError as error:
            self._ended(f"writing to the engine failed: {error}")

    async def _send_with_fd(self, frame: bytes, fd: int) -> int:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return socket.send_fds(self._sock, [frame], [fd])
            except BlockingIOError:
                writable = loop.create_future()
                loop.add_writer(self._sock, writable.set_result, None)
                try:
                    await writable
                finally:
                    loop.remove_writer(self._sock)

    def _ended(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._on_closed(reason)
