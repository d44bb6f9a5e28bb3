"""What waits at inherited sockets while the service cannot start.

A connection that nobody accepts stays in the socket's queue, even after its client has left. systemd sees it there
and starts the service, which fails for the same reason, and so on until somebody mends the configuration. Accepting
and answering such connections ends that: each one costs one start, and its client learns at once what is wrong.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from magnitude.errors import ConfigError

# A client on this machine has sent its request long before it is accepted; a stranger gets no more than this.
_PATIENCE_S = 0.2
# All of them together: the error has to reach the admin, who waits for `systemctl start`.
_PATIENCE_WITH_ALL_S = 2.0
_LEAST_PATIENCE_S = 0.001  # what is there already is still read
# More than the queue of any socket holds (net.core.somaxconn is 4096): an end for certain, whatever keeps arriving.
_MOST_CONNECTIONS = 5000
_REQUEST_BYTES = 65536


@contextlib.contextmanager
def turning_away(listening: Sequence[int], clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """When a `ConfigError` comes out of this context, answer whoever waits at the sockets with the descriptors
    `listening`, then let it pass on. The descriptors stay the caller's; copies of them are held until then."""
    copies = [socket.socket(fileno=socket.dup(fd)) for fd in listening]
    try:
        yield
    except ConfigError:
        until = clock() + _PATIENCE_WITH_ALL_S
        for sock in copies:
            _answer_all(sock, lambda: min(_PATIENCE_S, max(_LEAST_PATIENCE_S, until - clock())))
        raise
    finally:
        for sock in copies:
            sock.close()


def _answer_all(listening: socket.socket, patience_s: Callable[[], float]) -> None:
    # OSError: not a socket that listens, or the queue is empty.
    with contextlib.suppress(OSError):
        listening.setblocking(False)
        for _ in range(_MOST_CONNECTIONS):
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(patience_s())
                # Closing a socket with unread bytes resets the connection, and the answer would be lost.
                connection.recv(_REQUEST_BYTES)
                connection.sendall(_ANSWER)


def _answer() -> bytes:
    body = json.dumps(
        {
            "error": {
                # What is wrong with it is for the admin: whoever can connect may be anybody.
                "message": "The service cannot start: its configuration cannot be used",
                "type": "server_error",
                "param": None,
                "code": ConfigError.code,
                "hint": "See `systemctl status magnitude` on the device.",
            }
        }
    ).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Retry-After: 10\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


_ANSWER = _answer()
