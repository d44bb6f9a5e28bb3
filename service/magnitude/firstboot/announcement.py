"""What the device says of itself on its console and above the login prompt. Pure: facts in, texts out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from magnitude.supervise.exit_status import EXIT_CONFIG

# agetty(8) puts the first address of a running interface in their place, and prompts anew when it changes.
_ADDRESSES = r"\4 \6"
_WIDTH = 160  # a status is one line on a console


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What systemd says of the service (`systemctl show`), and what else is to be seen.

    `exit_status` is that of the service's last end. `addresses` of the device, without loopback. `rejected`: files on
    the boot partition that were not taken over. `has_ssh`: there is a server for it; `can_log_in`: and a key.
    """

    version: str
    host: str
    active_state: str = ""
    status_text: str = ""
    exit_status: int = 0
    restarts: int = 0
    addresses: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    has_ssh: bool = False
    can_log_in: bool = False


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """`line` for the console and the journal, `issue` for agetty."""

    line: str
    issue: str


def announce(facts: Facts) -> Announcement:
    """The texts for `facts`."""
    state = _state(facts)
    where = ", ".join(facts.addresses) if facts.addresses else "no network address yet"
    line = f"Magnitude {facts.version} on {facts.host} ({where}): {state}"
    further = _further(facts)
    who = _plain(f"Magnitude {facts.version} on {facts.host}")
    issue = [f"{who} {_ADDRESSES}", _plain(state), *map(_plain, further)]
    return Announcement(
        line=" ".join(_printable(text) for text in (line, *further)),
        issue="".join(f"{text}\n" for text in issue) + "\n",
    )


def addresses_of(ip_json: Sequence[object]) -> tuple[str, ...]:
    """The addresses in the output of `ip -json address`, those that are valid beyond the device's own link."""
    found = []
    for link in ip_json:
        entries = link.get("addr_info", []) if isinstance(link, dict) else []
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("scope") == "global" and not entry.get("temporary"):
                found.append(str(entry.get("local", "")))
    return tuple(address for address in found if address)


def _state(facts: Facts) -> str:
    if facts.active_state in ("active", "reloading"):
        return f"ready. {facts.status_text}".strip()
    if facts.exit_status == EXIT_CONFIG:
        return "NOT READY: its configuration cannot be used. `magnitude doctor` says more."
    if facts.active_state in ("activating", "deactivating"):
        again = f", start {facts.restarts + 1}" if facts.restarts else ""
        return f"NOT READY yet ({facts.active_state}{again}). `magnitude doctor` says more."
    if facts.active_state == "failed":
        return f"NOT READY: the service failed (status {facts.exit_status}). `magnitude doctor` says more."
    return "NOT READY: the service does not run. `systemctl start magnitude` starts it."


def _further(facts: Facts) -> list[str]:
    said = []
    if facts.rejected:
        said.append(
            f"Not taken over from the boot partition: {', '.join(sorted(facts.rejected))}"
            " (the file .rejected.txt beside it says why)."
        )
    if facts.has_ssh and not facts.can_log_in:
        said.append("Nobody can log in: put authorized_keys into the folder magnitude of the boot partition.")
    return said


def _printable(text: str) -> str:
    """On one line, and without what would drive a terminal."""
    one = "".join(c if c.isprintable() else " " for c in text)
    return one if len(one) <= _WIDTH * 3 else one[: _WIDTH * 3 - 1] + "…"


def _plain(text: str) -> str:
    """As agetty shows it: a backslash begins an escape there."""
    return _printable(text)[:_WIDTH].replace("\\", "\\\\")
