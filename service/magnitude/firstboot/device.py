"""The steps of a boot in order, each by itself: what one of them cannot do keeps none of the others from its work."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import magnitude
from magnitude.board.machine_id import MACHINE_ID
from magnitude.board.roots import read_text
from magnitude.config.load import load, load_text
from magnitude.errors import ConfigError, MagnitudeError
from magnitude.firstboot.announcement import Facts, addresses_of
from magnitude.firstboot.boot_partition import MOUNT_POINT, MOUNTS, Run, mount_at, writable
from magnitude.firstboot.host_keys import make_host_key
from magnitude.firstboot.identity import BOOT_FILE, BOOT_VARIABLE, Identity, boot_file, settle
from magnitude.firstboot.open_socket import DROP_IN, opening
from magnitude.firstboot.parcel import REJECTED
from magnitude.firstboot.takeover import Places
from magnitude.firstboot.takeover_files import FOLDER, Noted, Outcome, take_over
from magnitude.paths import SYSTEM_CONFIG
from magnitude.persist import StateFile, write_atomic
from magnitude.units.host import HostCommandFailed, output_of, run_quietly

_log = logging.getLogger(__name__)

# Everything that makes this device itself, on the data partition: keys, ids, what was taken over.
DEVICE_FOLDER = Path("/var/lib/magnitude-device")
# systemd/image/NetworkManager/50-magnitude.conf points NetworkManager there.
CONNECTIONS = Path("/var/lib/NetworkManager/system-connections")
# Whoever logs in administers the device, so root it is: another user with all its rights would need a password or
# sudo without one, a home folder, and an account on a root that cannot be written.
LOGIN_USER = "root"
NOTES_SCHEMA = 1
# Where U-Boot's environment lies (fw_setenv); devices with another boot loader have no such file.
UBOOT_CONFIG = Path("/etc/fw_env.config")
# Units that last until the next boot.
RUN_UNITS = Path("/run/systemd/system")

# What is only asked about is asked while people wait for the console: systemd and the kernel answer at once.
_ASK_S = 10.0
_SERVERS = "/usr/sbin:/sbin:/usr/bin:/bin"  # whatever PATH says of the former


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything is; tests put a tree of their own in its place."""

    state: Path = DEVICE_FOLDER
    boot: Path = MOUNT_POINT
    config: Path = SYSTEM_CONFIG
    connections: Path = CONNECTIONS
    machine_id: Path = MACHINE_ID
    mountinfo: Path = MOUNTS
    uboot_config: Path = UBOOT_CONFIG
    run_units: Path = RUN_UNITS

    @property
    def login_keys(self) -> Path:
        return self.state / "login-keys" / LOGIN_USER

    @property
    def country(self) -> Path:
        return self.state / "wifi-country"

    @property
    def own_id(self) -> Path:
        return self.state / "machine-id"

    @property
    def host_keys(self) -> Path:
        return self.state / "ssh"


def prepare(device: Device, run: Run = run_quietly) -> list[str]:
    """All that has to be done before network, ssh and service start. What failed, a line each."""
    failed: list[str] = []

    def attempt(what: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (MagnitudeError, OSError) as error:
            failed.append(f"{what}: {error.message if isinstance(error, MagnitudeError) else error}")

    device.state.mkdir(parents=True, exist_ok=True)
    attempt("what lies on the boot partition", lambda: failed.extend(_take_over(device, run)))
    attempt("the address to listen on", lambda: _open_socket(device, run))
    attempt("the host key", lambda: _make_host_key(device, run))
    attempt("the machine id", lambda: _settle_identity(device, run))
    attempt("the radio's country", lambda: _set_country(device, run))
    for line in failed:
        _log.error("%s", line)
    return failed


def check_config(text: str) -> None:
    """Raises `ConfigError` for a configuration that the service could not use."""
    load_text(text, "magnitude.yaml")


def _take_over(device: Device, run: Run) -> list[str]:
    private = device.state / "private"
    # It says which files were taken by what was in them, and one of them holds a passphrase.
    private.mkdir(mode=0o700, exist_ok=True)
    notes = StateFile(private / "taken.json", Noted, schema=NOTES_SCHEMA)
    places = Places(
        config=device.config, connections=device.connections, login_keys=device.login_keys, country=device.country
    )
    outcomes = take_over(device.boot, places, notes, check_config=check_config, run=run, mountinfo=device.mountinfo)
    for outcome in outcomes:
        _say(outcome)
    return [f"{outcome.name}: {outcome.detail}" for outcome in outcomes if outcome.result == "failed"]


def _open_socket(device: Device, run: Run) -> None:
    """Have the socket unit listen where the configuration says. A configuration that cannot be read changes nothing:
    the service says what is wrong with it."""
    try:
        server = load(device.config, environ={}).settings.server
    except ConfigError:
        return
    wanted = opening(server)
    if wanted.notice:
        _log.warning("%s", wanted.notice)
    path = device.run_units / DROP_IN
    if (path.read_text() if path.exists() else "") == wanted.text:
        return
    if wanted.text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, wanted.text.encode())
    else:
        path.unlink()
    # A socket is not started while its service runs, so both are, in one transaction; what does not run yet, as at a
    # boot, is left. Nothing is waited for: the service starts after this.
    units = ("magnitude.socket", "magnitude.service")
    for command in (("systemctl", "daemon-reload"), ("systemctl", "--no-block", "try-restart", *units)):
        failure = run(command)
        if failure is not None:
            raise OSError(failure)


def _say(outcome: Outcome) -> None:
    if outcome.result == "rejected":
        _log.warning("%s was not taken over: %s", outcome.name, outcome.detail)
    elif outcome.result == "taken" or (outcome.result == "finished" and not outcome.detail):
        _log.info("%s was taken over", outcome.name)
    elif outcome.result == "finished":
        _log.info("%s was taken over before; %s", outcome.name, outcome.detail)


def _make_host_key(device: Device, run: Run) -> None:
    if shutil.which("ssh-keygen") is None:
        _log.info("there is no ssh on this device: no host key was made")
    elif make_host_key(device.host_keys, run):
        _log.info("a host key for ssh was made")


def _settle_identity(device: Device, run: Run) -> None:
    at_boot_loader = None
    path = device.boot / BOOT_FILE
    if mount_at(device.boot, device.mountinfo) is not None:
        at_boot_loader = read_text(path) or ""
        at_boot_loader += "\n" if at_boot_loader else ""
    todo: Identity = settle(
        running=read_text(device.machine_id) or "",
        kept=read_text(device.own_id) or "",
        at_boot_loader=at_boot_loader,
    )
    if todo.keep:
        # Confidential (machine-id(5)), though every program of the device may read it in /etc.
        write_atomic(device.own_id, f"{todo.keep}\n".encode(), 0o600)
    if todo.for_boot_loader:
        try:
            with writable(device.boot, run, device.mountinfo):
                write_atomic(path, boot_file(todo.for_boot_loader).encode())
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error.strerror)
    if todo.own and device.uboot_config.exists():
        _tell_uboot(todo.own, run)
    if todo.notice:
        _log.warning("%s", todo.notice)


def _tell_uboot(own: str, run: Run) -> None:
    if _output("fw_printenv", "-n", BOOT_VARIABLE).strip() == own:
        return  # its environment is on the card, which is not written without need
    failure = run(("fw_setenv", BOOT_VARIABLE, own))
    if failure is not None:
        _log.warning("U-Boot was not told the machine id: %s", failure.replace(own, "(removed)"))


def _set_country(device: Device, run: Run) -> None:
    country = read_text(device.country)
    if country and shutil.which("iw"):
        failure = run(("iw", "reg", "set", country))
        if failure is not None:
            _log.warning("the radio was not told the country %s: %s", country, failure)


def read_facts(device: Device, unit: str = "magnitude.service", sleep: Callable[[float], None] = time.sleep) -> Facts:
    """What there is to say now. What cannot be found out is left out.

    A unit that is about to end is waited for, for two seconds at most: what it comes to is worth saying.
    """
    shown = _unit_state(unit)
    for _ in range(20):
        if shown.get("ActiveState") != "deactivating":
            break
        sleep(0.1)
        shown = _unit_state(unit)
    try:
        links = json.loads(_output("ip", "-json", "address") or "[]")
    except ValueError:
        links = []
    return Facts(
        version=magnitude.__version__,
        host=platform.node(),
        active_state=shown.get("ActiveState", ""),
        status_text=shown.get("StatusText", ""),
        exit_status=_number(shown.get("ExecMainStatus", "")),
        restarts=_number(shown.get("NRestarts", "")),
        addresses=addresses_of(links if isinstance(links, list) else []),
        rejected=_rejected(device),
        has_ssh=shutil.which("sshd", path=_SERVERS) is not None,
        can_log_in=bool(read_text(device.login_keys)),
    )


def _unit_state(unit: str) -> dict[str, str]:
    names = "ActiveState,StatusText,ExecMainStatus,NRestarts"
    lines = _output("systemctl", "show", f"--property={names}", unit).splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def _rejected(device: Device) -> tuple[str, ...]:
    try:
        return tuple(
            path.name[: -len(REJECTED)]
            for folder in device.boot.iterdir()
            if folder.name.lower() == FOLDER
            for path in folder.iterdir()
            if path.name.endswith(REJECTED)
        )
    except OSError:
        return ()


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _output(*command: str) -> str:
    """What a program prints; "" when it is missing or fails."""
    with contextlib.suppress(HostCommandFailed):
        return output_of(command, within_s=_ASK_S)
    return ""
