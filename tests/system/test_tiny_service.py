"""The real service with a tiny folder of ONNX Runtime GenAI's own builder, served as it is."""

from __future__ import annotations

import hashlib
import signal
import socket
from pathlib import Path

import httpx
import openai
import pytest
from started_service import free_port
from tiny_service import FOREIGN, STARTED_S, TinyService

KEY, ADMIN_KEY = "mag-for-the-api", "mag-for-the-admin"


def key(name: str, value: str, **fields: object) -> dict[str, object]:
    return {"name": name, "sha256": hashlib.sha256(value.encode()).hexdigest(), **fields}


def client_of(url: str, api_key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0)


def test_a_folder_of_genai_is_served_without_an_import(tmp_path: Path, services: list[TinyService]) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    services.append(TinyService(tmp_path / "home", listen=f"127.0.0.1:{port}"))
    services[0].wait_ready(url)
    question = {"model": FOREIGN.name, "prompt": [3, 7, 11], "max_tokens": 8, "temperature": 0}
    whole = client_of(url).completions.create(**question)
    assert whole.usage.completion_tokens == 8
    chunks = client_of(url).completions.create(**question, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client_of(url).chat.completions.create(model=FOREIGN.name, messages=[{"role": "user", "content": "x"}])
    assert services[0].stop(signal.SIGINT) == 0


def test_sockets_of_the_service_manager_are_served_and_outlive_the_service(
    tmp_path: Path, services: list[TinyService]
) -> None:
    path = tmp_path / "given.sock"
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(path))
    unix.listen()
    with socket.create_server(("127.0.0.1", 0)) as tcp, unix:
        url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
        for number in range(2):  # a restart finds the same sockets
            services.append(TinyService(tmp_path / "home", inherited=(tcp, unix)))
            services[number].wait_ready(url)
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as admin:
                assert admin.get("/metrics").status_code == 200
            assert services[number].stop() == 0
            assert path.exists()
    assert not (tmp_path / "home" / "run" / "magnitude.sock").exists()


def test_beyond_loopback_only_keys_let_anybody_in(tmp_path: Path, services: list[TinyService]) -> None:
    port = free_port()
    services.append(TinyService(tmp_path / "open", listen=f"0.0.0.0:{port}"))
    assert services[0].process.wait(STARTED_S) == 78
    assert "no API key" in services[0].log.read_text()

    keys = [key("display", KEY), key("admin", ADMIN_KEY, admin=True)]
    services.append(TinyService(tmp_path / "keys", listen=f"0.0.0.0:{port}", api_keys=keys))
    url = f"http://127.0.0.1:{port}"
    services[1].wait_ready(url)
    with pytest.raises(openai.AuthenticationError):
        client_of(url, "another").models.list()
    assert [model.id for model in client_of(url, KEY).models.list()] == [FOREIGN.name]
    for given, status in ((KEY, 403), (ADMIN_KEY, 200)):
        assert httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {given}"}).status_code == status
    assert KEY not in services[1].log.read_text()


def test_a_second_service_at_the_same_place_gives_way_and_says_so(
    tmp_path: Path, services: list[TinyService]
) -> None:
    port = free_port()
    services.append(TinyService(tmp_path / "one", listen=f"127.0.0.1:{port}"))
    services[0].wait_ready(f"http://127.0.0.1:{port}")
    for home, words in (("one", "Another service answers"), ("two", "Address already in use")):
        services.append(TinyService(tmp_path / home, listen=f"127.0.0.1:{port}"))
        assert services[-1].process.wait(STARTED_S) == 78
        assert words in services[-1].log.read_text()
    assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
