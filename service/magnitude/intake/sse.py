"""Server-sent events: one answer as a stream of chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from magnitude.errors import Cancelled, MagnitudeError
from magnitude.intake.answer import AnswerPiece, AnswerReader
from magnitude.intake.connected import while_connected
from magnitude.intake.errors import error_body, internal_error

# So long the answer's headers wait for the first token: an engine that fails at once can still be reported with a
# status that clients know how to retry. Longer prefills must show a sign of life.
HEADERS_WAIT_S = 1.0
# Proxies cut silent connections after 30 to 60 s; a long prefill on a small board can take that long.
KEEP_ALIVE_S = 10.0
# Pieces after which others get their turn: when many wait to be sent, neither the next piece nor a client that is
# gone makes a stream pause by itself.
_BREATHER = 16

_DONE = b"data: [DONE]\n\n"
_LAST: Message = {"type": "http.response.body", "body": b"", "more_body": False}
_COMMENT = b": waiting\n\n"

Chunk = dict[str, Any]


class AnswerStream:
    """An ASGI response. `opening` chunks come first, `chunks` turns each piece of the answer into chunks.

    It takes over `reader` and gives the generation back at the end, however that comes. An error after the first
    byte is sent as an event in the envelope of the API, which the `openai` client raises as `APIError`; then the
    stream ends without `[DONE]`, so that nobody takes half an answer for a whole one.
    """

    def __init__(
        self,
        reader: AnswerReader,
        *,
        opening: Iterable[Chunk],
        chunks: Callable[[AnswerPiece], Iterable[Chunk]],
        headers: dict[str, str],
    ) -> None:
        self._reader = reader
        self._opening = opening
        self._chunks = chunks
        self._headers = headers
        self._sent_s = 0.0  # by the loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._run(send))
        finally:
            self._reader.close("client gone")

    async def _run(self, send: Send) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # nginx would hold the chunks back
            **self._headers,
        }
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()],
            }
        )
        await send(_body(_events(self._opening)))
        try:
            await self._pump(send)
        except Cancelled:
            raise
        except Exception as error:
            told = error if isinstance(error, MagnitudeError) else internal_error()
            await send(_body(_events([error_body(told)])))
            await send(_LAST)
            # Whoever keeps account learns how it really ended.
            raise
        await send(_LAST)

    async def _pump(self, send: Send) -> None:
        alive = asyncio.ensure_future(self._keep_alive(send))
        sent = 0
        try:
            while (piece := await self._reader.next()).end is None:
                await self._send_chunks(send, piece)
                if (sent := sent + 1) % _BREATHER == 0:
                    await asyncio.sleep(0)
        finally:
            alive.cancel()
        await self._send_chunks(send, piece)
        await send(_body(_DONE))

    async def _send_chunks(self, send: Send, piece: AnswerPiece) -> None:
        # What became known together is sent together: one write, not one a chunk.
        if data := _events(self._chunks(piece)):
            self._sent_s = asyncio.get_running_loop().time()
            await send(_body(data))

    async def _keep_alive(self, send: Send) -> None:
        """Comments into every long silence. A task of its own: waiting for each token with a limit takes a task and
        a timer a token, and two more rounds of the event loop."""
        loop = asyncio.get_running_loop()
        self._sent_s = loop.time()
        while True:
            await asyncio.sleep(self._sent_s + KEEP_ALIVE_S - loop.time())
            if loop.time() >= self._sent_s + KEEP_ALIVE_S:
                self._sent_s = loop.time()
                await send(_body(_COMMENT))


def _events(chunks: Iterable[Chunk]) -> bytes:
    """Each chunk on one line, whatever is in it: JSON escapes line breaks."""
    return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)


def _body(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
