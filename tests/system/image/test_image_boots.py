"""The image boots and answers. Takes minutes: not part of CI.

pytest -m on_demand tests/system/image/test_image_boots.py
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import tiny_gguf
from image_machine import BOOT_S, ImageMachine, overlay_disk
from tested_image import DATA_MIB, GOLDEN, SLOT_MIB, ImageUnderTest, write_overlay
from tiny_sources import decoder_folder

from image.guest import qemu
from image.guest.build import MODELS, Built, build
from image.guest.partitions import MIB, layout, offsets

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

CHAT, EMBEDDER = MODELS
# What the root may take on a board without its models, which have their own size.
ROOT_BYTES = 400_000_000
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f somebody\n"


@pytest.fixture(scope="module", params=["amd64", "arm64"])
def architecture(request: pytest.FixtureRequest, can_build: Callable[[str], None]) -> str:
    can_build(request.param)
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def built(architecture: str, magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An image with both embedded models, as a person builds it."""
    folder = tmp_path_factory.mktemp(architecture)
    models = [magnitude_home / "models" / name for name in MODELS]
    return build(architecture, folder / "out", models=models, overlay=write_overlay(folder / "overlay"))


class Booted(NamedTuple):
    machine: ImageMachine
    client: httpx.Client
    ready_s: float


@pytest.fixture(scope="module")
def booted(architecture: str, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    """That image, booted until it is ready."""
    assert built.image is not None
    folder = tmp_path_factory.mktemp(f"{architecture}-machine")
    began_s = time.monotonic()
    disk = overlay_disk(built.image, folder / "disk.qcow2")
    with ImageMachine(architecture, disk, folder / "run") as machine, machine.wait_client(built.api_key) as client:
        yield Booted(machine, client, time.monotonic() - began_s)


@pytest.mark.models
def test_an_image_boots_to_a_chat_answer_on_the_forwarded_port(
    architecture: str, booted: Booted, record_property: Callable[[str, object], None]
) -> None:
    machine, client, ready_s = booted
    began_s = time.monotonic()
    question = {"role": "user", "content": "Name the capital of France."}
    body = {"model": CHAT, "messages": [question], "max_tokens": 16, "temperature": 0}
    reply = client.post("/v1/chat/completions", json=body)
    record_property("boot_to_ready_s", round(ready_s))
    record_property("answer_s", round(time.monotonic() - began_s))
    print(f"{architecture}: ready after {ready_s:.0f} s, answered in {time.monotonic() - began_s:.0f} s")
    # It answers once no unit is being started any more, and the console's line is one that waits for the service.
    print(machine.until("systemd-analyze", timeout_s=BOOT_S))
    print(machine.check("systemd-analyze critical-chain --no-pager magnitude.service"))
    assert reply.status_code == 200, reply.text
    assert "Paris" in reply.json()["choices"][0]["message"]["content"]
    assert client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert machine.slot() == "A"


@pytest.mark.models
def test_the_other_model_of_the_image_answers_too(booted: Booted) -> None:
    reply = booted.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "a text"})
    assert reply.status_code == 200, reply.text
    assert len(reply.json()["data"][0]["embedding"]) == 384


@pytest.mark.models
def test_a_model_that_is_imported_on_the_device_is_served(built: Built, booted: Booted, tmp_path: Path) -> None:
    source = tmp_path / "mine.gguf"
    tiny_gguf.write_whole(source)
    booted.machine.check(
        "magnitude import /tmp/mine.gguf --name mine && systemctl restart magnitude",
        files={"/tmp/mine.gguf": source.read_bytes()},
        timeout_s=BOOT_S,
    )
    with booted.machine.wait_client(built.api_key) as client:
        reply = client.post("/v1/completions", json={"model": "mine", "prompt": "ABC", "max_tokens": 2})
    assert reply.status_code == 200, reply.text


@pytest.mark.models
def test_nothing_has_failed_on_the_way(booted: Booted) -> None:
    assert booted.machine.check("systemctl list-units --failed --plain --no-legend") == ""


@pytest.mark.models
def test_the_root_is_small(architecture: str, built: Built, record_property: Callable[[str, object], None]) -> None:
    record_property("root_bytes", built.root_bytes)
    print(f"{architecture}: root without models {built.root_bytes / 1e6:.0f} MB")
    assert built.root_bytes <= ROOT_BYTES


def test_the_root_is_read_only_and_what_must_last_lies_on_the_data_partition(
    tested: ImageUnderTest, tmp_path: Path
) -> None:
    disk = overlay_disk(tested.image, tmp_path / "disk.qcow2")
    with ImageMachine(tested.architecture, disk, tmp_path / "run-1") as machine:
        machine.wait_ready()
        assert machine.run("touch /usr/probe").status
        assert machine.run("touch /boot/firmware/probe").status
        ours = "/etc/magnitude/probe /var/lib/magnitude/models/probe /var/lib/rauc/probe"
        machine.check(f"touch {ours} && sync")
        identity = machine.check("cat /etc/machine-id")
        assert machine.check("systemctl list-units --failed --plain --no-legend") == ""
        machine.reboot()
        machine.wait_ready()
        machine.check(f"ls {ours}")
        assert machine.check("cat /etc/machine-id") == identity
    other = overlay_disk(tested.image, tmp_path / "other.qcow2")
    with ImageMachine(tested.architecture, other, tmp_path / "run-2") as machine:
        machine.wait_ready()
        assert machine.check("cat /etc/machine-id") != identity


def test_models_of_the_image_give_way_to_the_users_and_are_never_written(
    tested: ImageUnderTest, tmp_path: Path
) -> None:
    source = decoder_folder(GOLDEN, tmp_path / "source")
    files = {f"/tmp/source/{path.name}": path.read_bytes() for path in source.iterdir() if path.suffix != ".npz"}
    models, of_image = "/var/lib/magnitude/models", "/usr/share/magnitude/models/tiny"
    hashes = f"sha256sum {of_image}/*"
    with ImageMachine(
        tested.architecture, qemu.disk(copied(tested.image, tmp_path / "disk")), tmp_path / "run"
    ) as machine:
        machine.wait_ready()
        assert machine.check(f"readlink {models}/tiny").strip() == of_image
        before = machine.check(hashes)
        machine.check("magnitude import /tmp/source --name tiny --replace", timeout_s=BOOT_S, files=files)
        assert machine.run(f"test -L {models}/tiny").status
        assert machine.check(f"readlink {models}/.tiny.previous").strip() == of_image
        machine.check("magnitude rollback tiny", timeout_s=BOOT_S)
        assert machine.check(f"readlink {models}/tiny").strip() == of_image
        machine.check("magnitude rollback tiny", timeout_s=BOOT_S)
        assert machine.run(f"test -L {models}/tiny").status
        machine.check("magnitude rm tiny --yes", timeout_s=BOOT_S)
        assert machine.check(f"ls -A {models}") == ""
        assert machine.check(hashes) == before
        # What was removed was the user's; the image's own comes back.
        machine.reboot()
        machine.wait_ready()
        assert machine.check(f"readlink {models}/tiny").strip() == of_image


def copied(image: Path, target: Path) -> Path:
    subprocess.run(["cp", "--sparse=always", image, target], check=True)
    return target


def test_a_first_boot_takes_over_what_lies_on_the_boot_partition_and_grows_the_data(
    tested: ImageUnderTest, tmp_path: Path
) -> None:
    disk = copied(tested.image, tmp_path / "disk")
    begin = offsets(layout(SLOT_MIB * MIB, DATA_MIB * MIB))
    # It takes the place of the image's own, which has the key that the forwarded port needs.
    (tmp_path / "magnitude.yaml").write_text(
        f"server:\n  max_queue: 7\n  api_keys:\n    - {{name: mine, sha256: {'0' * 64}}}\n"
    )
    (tmp_path / "authorized_keys").write_text(KEY)
    for name in ("magnitude.yaml", "authorized_keys"):
        subprocess.run(
            ["mcopy", "-i", f"{disk}@@{begin['boot']}", tmp_path / name, f"::/magnitude/{name}"], check=True
        )
    with disk.open("r+b") as file:
        file.truncate(disk.stat().st_size + 512 * MIB)
    with ImageMachine(tested.architecture, qemu.disk(disk), tmp_path / "run") as machine:
        machine.wait_ready()
        taken = "/boot/firmware/magnitude/magnitude.yaml.taken /boot/firmware/magnitude/authorized_keys.taken"
        machine.until(f"ls {taken}", timeout_s=BOOT_S)
        assert "max_queue: 7" in machine.check("cat /etc/magnitude/magnitude.yaml")
        assert KEY.split()[1] in machine.check("cat /var/lib/magnitude-device/login-keys/root")
        grown = f"test $(stat --file-system --format=%b /data) -gt {(DATA_MIB + 400) * MIB // 4096}"
        machine.until(grown, timeout_s=BOOT_S)
        identity = machine.check("cat /etc/machine-id").strip()
        assert machine.check("cat /boot/firmware/machine-id.env").strip() == f"machine_id={identity}"
        deadline = time.monotonic() + BOOT_S
        # The line that says where the device is and how it does; systemd has the name in its messages, too.
        while not re.search(rb"Magnitude \S+ on \S+", machine.console.read_bytes()):
            assert time.monotonic() < deadline, machine.console_end()
            time.sleep(1)
        machine.reboot()
        machine.wait_ready()
        assert machine.check("cat /etc/machine-id").strip() == identity
