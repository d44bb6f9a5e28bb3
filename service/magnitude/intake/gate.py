"""What every request passes first and last: identity, limits, errors, numbers, one log line.

It stands around the whole application, so that no answer leaves without a request id and no error in another
shape than the one promised.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magnitude.errors import Cancelled, DeadlineExceeded, MagnitudeError
from magnitude.feedback.metrics import Metrics
from magnitude.intake.auth import Access, Peer, Principal, access_of, authorize
from magnitude.intake.context import Passage
from magnitude.intake.errors import error_response, internal_error, status_of
from magnitude.intake.live import LiveSettings

log = logging.getLogger("magnitude.intake")

_ID_CHARACTERS = re.compile(r"[^A-Za-z0-9._:-]")
_ID_MAX_CHARS = 64  # longer than a UUID or a trace id with its span

# Asked every few seconds by probes and scrapers; in the log they would bury everything else.
_QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})


class Gate:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, *, live: LiveSettings, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._app = app
        self._live = live
        self._metrics = metrics
        self._clock = clock
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        passage = Passage(
            request_id=_request_id(headers.get("x-request-id")), principal=Principal(), started_s=self._clock()
        )
        scope["magnitude"] = passage
        answer = _Answer(send, passage.request_id)
        path: str = scope["path"]
        self._open += 1
        server = self._live.current.server
        try:
            peer = peer_of(scope)
            passage.principal = authorize(peer, path, headers, server)
            # Probes get through a full house: a busy service is not a dead one.
            if self._open > server.max_connections and access_of(path) is Access.API:
                raise MagnitudeError(
                    f"{server.max_connections} requests are open, no more are taken",
                    hint="Try again shortly, or raise server.max_connections.",
                    code="too_many_connections",
                )
            await self._app(scope, receive, answer.send)
        except Exception as raised:
            error = self._as_error(raised, scope)
            # Also for a stream that broke after its first byte: the numbers tell how it ended.
            answer.status = status_of(error)
            passage.notes["error"] = error.code
            if isinstance(error, DeadlineExceeded):
                self._metrics.deadline_misses.labels(str(passage.notes.get("model", "")), "hard").inc()
            if isinstance(error, Cancelled):
                self._metrics.cancelled.labels(_route(scope)).inc()
            elif not answer.started:
                await error_response(error, path)(scope, receive, answer.send)
        finally:
            self._open -= 1
            self._account(scope, passage, answer.status)

    def _as_error(self, raised: Exception, scope: Scope) -> MagnitudeError:
        if isinstance(raised, MagnitudeError):
            return raised
        log.error(
            "request failed inside the service",
            exc_info=raised,
            extra={"fields": {"request": scope["magnitude"].request_id, "route": _route(scope)}},
        )
        return internal_error()

    def _account(self, scope: Scope, passage: Passage, status: int) -> None:
        route, took_s = _route(scope), self._clock() - passage.started_s
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(took_s)
        log.log(
            logging.DEBUG if route in _QUIET_ROUTES else logging.INFO,
            "request done",
            extra={
                "fields": {
                    "request": passage.request_id,
                    "route": route,
                    "status": status,
                    "ms": round(took_s * 1000, 1),
                    "client": passage.principal.name or "-",
                    **passage.notes,
                }
            },
        )


class _Answer:
    """The way out: adds the request id to the answer and remembers how it began."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False
        self.status = 499  # until something is sent: gone without an answer

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._request_id
            headers["X-Content-Type-Options"] = "nosniff"
        await self._send(message)


def _request_id(given: str | None) -> str:
    """The client's own id, cut to harmless characters, or a new one."""
    kept = _ID_CHARACTERS.sub("", given or "")[:_ID_MAX_CHARS]
    return kept or f"req-{secrets.token_hex(8)}"


def peer_of(scope: Scope) -> Peer:
    """Where the request of an ASGI scope came in."""
    host, port = scope.get("server") or ("", 0)
    # Over a unix socket the server is (path, None), and the client has no address.
    return Peer(unix=port is None and not scope.get("client"), local_address=str(host))


def _route(scope: Scope) -> str:
    """The route's pattern, never the raw path: its number of values must stay small. A request that was refused
    before the router saw it counts where it would have gone."""
    if (route := scope.get("route")) is not None:
        return getattr(route, "path", "unmatched")
    for route in scope["app"].routes:
        if route.matches(scope)[0] is not Match.NONE:
            return getattr(route, "path", "unmatched")
    return "unmatched"
