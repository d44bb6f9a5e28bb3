"""A slot tool for tests: an executable with RAUC's command line and its answers, over a boot loader in a JSON file.

    tool = StubRauc(folder)          # slots A and B, A running
    tool.loader(...)                 # what the boot loader's storage says

The loader is U-Boot's as RAUC drives it: an order, and tries that are left; every boot costs one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = """#!{python} -S
import json, pathlib, sys
at = pathlib.Path({state!r})
state = json.loads(at.read_text())
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(" ".join(words) + "\\n")
if state.get("fails"):
    sys.exit("rauc: no service here")
if state.get("says") is not None:
    print(state["says"])
    sys.exit(0)
names = {{"rootfs.0": "A", "rootfs.1": "B"}}
if words[:1] == ["install"]:
    other = "B" if state["booted"] == "A" else "A"
    count = state["installed"].get(other, {{}}).get("count", 0) + 1
    state["installed"][other] = {{"version": words[1], "count": count}}
    state["order"] = [other] + [name for name in state["order"] if name != other]
    state["left"][other] = 3
elif words[:2] == ["status", "mark-good"]:
    state["left"][names[words[2]]] = 3
elif words[:2] == ["status", "mark-bad"]:
    if not state.get("stubborn"):
        state["order"] = [name for name in state["order"] if name != names[words[2]]]
        state["left"][names[words[2]]] = 0
elif words[0] == "status":
    slots = []
    for name, bootname in names.items():
        good = bootname in state["order"] and state["left"][bootname] > 0
        slot = dict(
            device="/dev/" + name, type="ext4", bootname=bootname, parent=None, mountpoint=None,
            state="booted" if bootname == state["booted"] else "inactive", boot_status="good" if good else "bad",
        )
        slot["class"] = "rootfs"
        status = dict(bundle=dict(compatible=None), status=None)
        if bootname in state["installed"]:
            put = state["installed"][bootname]
            status["bundle"] = dict(compatible="magnitude-test", version=put["version"])
            status["checksum"] = dict(sha256="00" * 32, size=7)
            status["installed"] = dict(timestamp="1970-01-01T00:00:00Z", count=put["count"])
        slot["slot_status"] = status
        slots.append({{name: slot}})
    # A slot without a boot name: an appendix of the root slot.
    slots.append({{"appfs.0": {{"class": "appfs", "bootname": None, "state": "active", "boot_status": None}}}})
    print(json.dumps(dict(compatible="magnitude-test", booted=state["booted"], slots=slots)))
at.write_text(json.dumps(state))
"""


class StubRauc:
    """The executable `path`, and the boot loader behind it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "rauc"
        self._state, self._log = folder / "loader.json", folder / "asked"
        self._log.touch()
        self.path.write_text(PROGRAM.format(python=sys.executable, state=str(self._state), log=str(self._log)))
        self.path.chmod(0o755)
        self.set(booted="A", order=["A", "B"], left={"A": 3, "B": 3}, installed={})

    @property
    def state(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self._state.read_text())
        return said

    @property
    def asked(self) -> list[str]:
        """The command lines so far, without those that only look."""
        return [line for line in self._log.read_text().splitlines() if not line.startswith("status --")]

    def set(self, **changed: Any) -> None:
        before = self.state if self._state.exists() else {}
        self._state.write_text(json.dumps({**before, **changed}))

    def boot(self) -> str:
        """What the boot loader does at the next start; the slot that runs then."""
        state = self.state
        for name in state["order"]:
            if state["left"][name] > 0:
                state["left"][name] -= 1
                self.set(booted=name, left=state["left"])
                return str(name)
        # Both are used up: begin anew rather than stand still.
        self.set(order=["A", "B"], left={"A": 3, "B": 3})
        return self.boot()
