"""One HTTP connection with bounds that uvicorn does not have: silent and slow clients, and too many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from magnitude.config import ServerSettings
from magnitude.errors import MagnitudeError, RequestError
from magnitude.feedback.metrics import Metrics
from magnitude.intake.errors import error_body, status_of

# Health probes and a person's curl still get in when programs use up all connections.
_RESERVED_CONNECTIONS = 8
# Some requests sent ahead; nobody sends more before the first is answered.
_MAX_AHEAD_BYTES = 256 * 1024


def bounded_protocol(server: ServerSettings, metrics: Metrics) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with the limits of `server`.

    Beyond `max_connections` (and a small reserve for probes) a connection gets 503 at once. A client that does not
    finish a request's head, or does not take our bytes, within `client_timeout_s` is cut off.
    """

    class BoundedH11(H11Protocol):
        _head: _Deadline
        _write: _Deadline

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._head = _Deadline(self.loop, server.client_timeout_s, transport.abort)
            self._write = _Deadline(self.loop, server.client_timeout_s, transport.abort)
            if len(self.connections) > server.max_connections + _RESERVED_CONNECTIONS:
                metrics.refused_connections.inc()
                self._refuse(
                    MagnitudeError(
                        f"{server.max_connections} connections are open, no more are taken",
                        hint="Try again shortly, or raise server.max_connections.",
                        code="too_many_connections",
                    )
                )
                return
            self._head.start()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self.cycle is None or self.cycle.response_complete:
                # Perhaps the first bytes of another request on the same connection.
                self._head.start()
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._head.stop()
            elif self.flow.read_paused and self.conn.their_state is h11.DONE:
                # The client sent its next request ahead, so uvicorn stopped reading until this one is answered,
                # and would not notice that the client goes away.
                if len(self.conn.trailing_data[0]) > _MAX_AHEAD_BYTES:
                    self.transport.abort()
                else:
                    self.flow.resume_reading()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head.stop()
            self._write.stop()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write.start()

        def resume_writing(self) -> None:
            self._write.stop()
            super().resume_writing()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            # Closing waits until the client has taken every byte, which one that reads nothing never does.
            if self.transport.get_write_buffer_size() > 0:
                self._write.start()

        def send_400_response(self, msg: str) -> None:
            self._refuse(
                RequestError(
                    "The request is not valid HTTP",
                    hint="Speak HTTP/1.1 with request line and headers of at most 64 KB.",
                    code="invalid_http",
                )
            )

        def _refuse(self, error: MagnitudeError) -> None:
            """Answer without the application and close. Bytes that cannot be parsed allow no other way."""
            body = msgspec.json.encode(error_body(error))
            status = status_of(error)
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            if status == 503:
                headers.append(("retry-after", "1"))
            try:
                answer = h11.Connection(h11.SERVER)
                self.transport.write(answer.send(h11.Response(status_code=status, headers=headers)) or b"")
                self.transport.write(answer.send(h11.Data(data=body)) or b"")
            except h11.LocalProtocolError:
                pass
            self.transport.close()

    return BoundedH11


class _Deadline:
    """Calls `late` once, unless stopped before; starting a running one changes nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after_s: float, late: Callable[[], None]) -> None:
        self._loop = loop
        self._after_s = after_s
        self._late = late
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._after_s, self._late)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
