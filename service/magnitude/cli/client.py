"""A small client of the running service, over its unix socket or TCP."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

import msgspec

from magnitude.config import Settings, parse_listen
from magnitude.errors import MagnitudeError
from magnitude.paths import Paths

if TYPE_CHECKING:
    import httpx

# Where the system's service is reached: the socket unit's, and its own where that unit is not used.
SYSTEM_SOCKETS = (Path("/run/magnitude/magnitude.sock"), Path("/run/magnitude/service/magnitude.sock"))
CONNECT_S = 3.0  # a service on this machine accepts at once or not at all
# Between two bytes of an answer: a long prompt on a small board is prefilled for minutes before the first token.
READ_S = 600.0


class ServiceUnreachable(MagnitudeError):
    """No running service answered."""

    code = "service_unreachable"


class ServiceRefused(MagnitudeError):
    """The service answered with an error; code and hint are its own."""

    def __init__(self, status: int, message: str, *, hint: str = "", code: str | None = None):
        super().__init__(message, hint=hint, code=code or f"http_{status}")
        self.status = status


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a streamed answer. `usage` comes with the last one."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


class Address(msgspec.Struct, frozen=True):
    """Where a service may listen: a unix socket, or a base URL."""

    socket: str | None = None
    url: str = "http://localhost"

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else self.url


def candidates(settings: Settings, paths: Paths, url: str | None = None) -> list[Address]:
    """Where to look for the service, best first: only `url` when it is given.

    The system service's sockets are always among them: a socket unit wins over what the configuration says. Unix
    sockets come before TCP, where routes that tell about all clients need a key.
    """
    if url:
        return [Address(socket=url.removeprefix("unix:"))] if url.startswith("unix:") else [Address(url=url)]
    found: list[Address] = []
    if settings.server.unix_socket != "":
        own = settings.server.unix_socket or str(paths.unix_socket)
        found += [Address(socket=path) for path in dict.fromkeys((own, *map(str, SYSTEM_SOCKETS)))]
    address = parse_listen(settings.server.listen)
    if address is not None and address.port:
        found.append(Address(url=f"http://{address}"))
    return found


def connect(addresses: Iterable[Address], api_key: str | None = None) -> ServiceClient:
    """A client of the first address where a service answers /healthz. Raises `ServiceUnreachable`."""
    import httpx

    tried: list[str] = []
    for address in addresses:
        client = ServiceClient(address, api_key)
        try:
            client.http.get("/healthz", timeout=CONNECT_S).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            client.close()
            tried.append(f"{address} ({_reason(error)})")
            continue
        return client
    raise ServiceUnreachable(
        f"no service answers at {', '.join(tried) or 'any address: the configuration names none'}",
        hint="Start it with `magnitude serve` (in a checkout: scripts/run), or `sudo systemctl start magnitude`",
    )


def _reason(error: Exception) -> str:
    text = str(error)
    if "No such file" in text:
        return "no such socket"
    return text or type(error).__name__


class ServiceClient:
    """Requests to one service. Every method raises `ServiceRefused` or `ServiceUnreachable`."""

    def __init__(self, address: Address, api_key: str | None = None) -> None:
        import httpx

        self.address = address
        # Reading the certificate store takes longer than the request itself; only TLS needs it.
        verify = address.url.startswith("https:")
        transport = httpx.HTTPTransport(uds=address.socket, verify=verify) if address.socket else None
        self.http = httpx.Client(
            base_url=address.url,
            transport=transport,
            verify=verify,
            trust_env=False,  # a proxy for the outer world must not see what stays on the device
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    def get(self, path: str) -> Any:
        """The JSON at `path`."""
        return self._request("GET", path, None)

    def text(self, path: str) -> str:
        """What is at `path`, as it is."""
        return str(self._answer("GET", path, None).text)

    def post(self, path: str, body: object) -> Any:
        """The JSON answer to `body`."""
        return self._request("POST", path, body)

    def delete(self, path: str, query: dict[str, str]) -> Any:
        """The JSON answer to deleting what `path` and `query` name."""
        return self._request("DELETE", f"{path}?{urlencode(query)}" if query else path, None)

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the service is ready, and what it says about it (503 is an answer here, not an error)."""
        import httpx

        try:
            response = self.http.get("/readyz", timeout=CONNECT_S)
            body = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise _lost(self.address, error) from error
        return response.status_code == 200, body if isinstance(body, dict) else {}

    def chat(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> Generator[ChatDelta]:
        """Stream a chat completion. Closing the iterator stops the generation."""
        import httpx

        request = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self.http.stream("POST", "/v1/chat/completions", json=request, headers=headers) as response:
                if response.status_code != 200:
                    response.read()
                    raise refusal(response.status_code, response.content)
                yield from chat_deltas(response.iter_lines())
        except httpx.HTTPError as error:
            raise _lost(self.address, error) from error

    def _request(self, method: str, path: str, body: object) -> Any:
        response = self._answer(method, path, body)
        try:
            return response.json()
        except ValueError as error:
            raise ServiceRefused(response.status_code, f"{path} answered something that is not JSON") from error

    def _answer(self, method: str, path: str, body: object) -> httpx.Response:
        import httpx

        try:
            response = self.http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise _lost(self.address, error) from error
        if response.status_code >= 400:
            raise refusal(response.status_code, response.content)
        return response


def _lost(address: Address, error: Exception) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"the connection to {address} broke: {_reason(error)}", hint="See the service's log, or `magnitude ps`"
    )


def refusal(status: int, content: bytes) -> ServiceRefused:
    """The error in an answer; one without the usual envelope is shown as it is, cut short."""
    try:
        error = json.loads(content)["error"]
        return ServiceRefused(status, str(error["message"]), hint=error.get("hint") or "", code=error.get("code"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServiceRefused(status, f"HTTP {status}: {content[:200].decode('utf-8', 'replace').strip()}")


def sse_data(lines: Iterable[str]) -> Iterator[str]:
    """The data of each server-sent event (WHATWG HTML, 9.2.6): comments and other fields are left out, several
    data lines of one event are joined."""
    data: list[str] = []
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                data.append(value.removeprefix(" "))
        elif data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def chat_deltas(lines: Iterable[str]) -> Iterator[ChatDelta]:
    """The pieces of a streamed chat completion. Raises `ServiceRefused` when the stream carries an error, or ends
    without saying that it is complete."""
    for data in sse_data(lines):
        if data == "[DONE]":
            return
        try:
            chunk = json.loads(data)
        except ValueError as error:
            raise ServiceRefused(200, f"the stream holds something that is not JSON: {data[:200]}") from error
        if "error" in chunk:
            raise refusal(200, data.encode())
        choice = (chunk.get("choices") or [{}])[0]
        yield ChatDelta(
            text=(choice.get("delta") or {}).get("content") or "",
            finish_reason=choice.get("finish_reason"),
            usage=chunk.get("usage"),
        )
    raise ServiceRefused(200, "the stream broke off", hint="See the service's log, or `magnitude ps`")
