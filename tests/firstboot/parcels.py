"""A boot partition, a device and its files, for tests of the first boot."""

from __future__ import annotations

import base64
import grp
import os
from collections.abc import Sequence
from pathlib import Path

from magnitude.firstboot.device import Device, check_config
from magnitude.firstboot.takeover import Places
from magnitude.firstboot.takeover_files import Noted, Outcome, take_over
from magnitude.persist import StateFile

PSK = "correct horse"
WIFI = f"ssid: Workshop\npsk: {PSK}\ncountry: de\n"
OWN_GROUP = grp.getgrgid(os.getgid()).gr_name


def key_line(kind: str = "ssh-ed25519", *, parts: Sequence[bytes] = (b"k" * 32,), comment: str = "me@desk") -> str:
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind.encode(), *parts))
    return f"{kind} {base64.b64encode(blob).decode()} {comment}"


KEYS = f"{key_line()}\n"


class Asked:
    """Notes the commands it is given, and does nothing. `refusals`: what is said to commands that hold a word."""

    def __init__(self, **refusals: str) -> None:
        self.commands: list[tuple[str, ...]] = []
        self._refusals = refusals

    def __call__(self, command: Sequence[str]) -> str | None:
        self.commands.append(tuple(command))
        return next((why for word, why in self._refusals.items() if word in " ".join(command)), None)


class Card:
    """A boot partition and the device that it is plugged into, as folders."""

    def __init__(self, root: Path, *, mount: str = "") -> None:
        """`mount`: the options with which the partition is mounted; "" when it is no mount."""
        self.partition = root / "boot/firmware"
        self.folder = self.partition / "magnitude"
        self.folder.mkdir(parents=True)
        self.device = Device(
            state=root / "var/lib/magnitude-device",
            boot=self.partition,
            config=root / "etc/magnitude/magnitude.yaml",
            connections=root / "var/lib/NetworkManager/system-connections",
            machine_id=root / "etc/machine-id",
            mountinfo=root / "mountinfo",
            uboot_config=root / "etc/fw_env.config",
            run_units=root / "run/systemd/system",
        )
        self.device.state.mkdir(parents=True)
        mounted = f"30 1 179:1 / {self.partition} {mount},relatime - vfat /dev/mmcblk0p1 rw\n" if mount else ""
        self.device.mountinfo.write_text(mounted)
        self.asked = Asked()

    @property
    def notes(self) -> StateFile[Noted]:
        return StateFile(self.device.state / "taken.json", Noted, schema=1)

    @property
    def places(self) -> Places:
        return Places(
            config=self.device.config,
            connections=self.device.connections,
            login_keys=self.device.login_keys,
            country=self.device.country,
            group=OWN_GROUP,
        )

    @property
    def wifi(self) -> Path:
        return self.device.connections / "magnitude-wifi.nmconnection"

    def put(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def boot(self) -> dict[str, Outcome]:
        """One boot's takeover: what became of each file."""
        outcomes = take_over(
            self.partition,
            self.places,
            self.notes,
            check_config=check_config,
            run=self.asked,
            mountinfo=self.device.mountinfo,
        )
        return {outcome.name: outcome for outcome in outcomes}

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def reason(self, name: str) -> str:
        return (self.folder / f"{name}.rejected.txt").read_bytes().decode()
