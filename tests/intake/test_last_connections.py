"""Clients that connect while the service stops, on a socket that outlives it as systemd's do."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from service_under_test import Live

from magnitude.config import ServerSettings

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ROUNDS = 3
CLIENTS = 400  # as many as connect during a stop, and none too many for the service


def test_each_connection_that_a_stopping_service_has_taken_gets_its_answer(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert connect_during_a_stop(folder)


def connect_during_a_stop(folder: Path) -> int:
    """How many clients were answered; each one that the service has taken must be."""
    clients: list[socket.socket] = []
    stopped = threading.Event()
    with Live(folder, ServerSettings(max_connections=CLIENTS)) as live:
        (outliving,) = [one.sock.dup() for one in live.sockets if one.sock.family == socket.AF_INET]
        outliving.setblocking(False)

        def connect() -> None:
            while not stopped.is_set() and len(clients) < CLIENTS:
                client = socket.create_connection(("127.0.0.1", live.port), 10)
                client.sendall(REQUEST)
                clients.append(client)

        connecting = threading.Thread(target=connect)
        connecting.start()
    stopped.set()
    connecting.join()
    answered, left = 0, waiting_at(outliving)
    outliving.close()
    for client in clients:
        client.settimeout(10)
        if client.getsockname() not in left:
            assert client.recv(100).startswith(b"HTTP/1.1 200 "), f"of {len(clients)} clients"
            answered += 1
        client.close()
    return answered


def waiting_at(listening: socket.socket) -> set[tuple[str, int]]:
    """Addresses of the clients that nobody has taken yet: the next service would."""
    waiting = set()
    while True:
        try:
            taken, address = listening.accept()
        except BlockingIOError:
            return waiting
        waiting.add(address)
        taken.close()
