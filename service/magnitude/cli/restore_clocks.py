"""`magnitude restore-clocks`: put back the CPU clock limits that a service which is gone has left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from magnitude.board.clock_caps import CapOutcome, PolicyCap
    from magnitude.board.roots import HostRoots

# The system service's folder, for root by hand; in its unit systemd names it.
SYSTEM_RUN = Path("/run/magnitude/service")
# The privileged helper takes milliseconds; where there is none, a stop is not held up for long.
PERMISSION_S = 2.0
POLL_S = 0.1


def register(app: typer.Typer) -> None:
    app.command("restore-clocks")(restore_clocks)


def restore_clocks() -> None:
    """Put back the CPU clock limits that a killed service has left.

    systemd runs this after every end of the service that has left some, and a new service does the same at its start.
    A service that runs sets its limits again.
    """
    from magnitude.board.roots import HostRoots
    from magnitude.errors import MagnitudeError
    from magnitude.paths import find_paths

    # The service's folder belongs to the service: root writes no request into it, and needs none.
    outcomes = put_back(dict.fromkeys((find_paths().run, SYSTEM_RUN)), HostRoots(), may_ask=os.geteuid() != 0)
    caps = [(policy, cap) for outcome in outcomes for policy, cap in outcome.policies.items()]
    for policy, cap in caps:
        typer.echo(said(policy, cap))
    if not caps:
        typer.echo("No clock limit is left to be put back.")
    if any(cap.refusal and cap.refusal.kind not in ("not_ours", "gone") for _, cap in caps):
        raise MagnitudeError(
            "a clock limit could not be put back",
            hint="Run this as root, or write the hardware's limit yourself: cpuinfo_max_freq of the same folder",
        )


def put_back(
    run_folders: Iterable[Path],
    roots: HostRoots,
    *,
    may_ask: bool,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    write: Callable[[Path, int], None] | None = None,
) -> list[CapOutcome]:
    """What became of the limits that are noted in `run_folders`. A file that wants permission is asked for and tried
    again for two seconds; others are left as they are. `write` takes the place of the kernel in tests."""
    from magnitude.board.cap_files import write_limit
    from magnitude.board.clock_caps import restore_leftover
    from magnitude.supervise.permissions import PermissionRequests

    def one(folder: Path) -> CapOutcome:
        requests = PermissionRequests(folder)

        def ask(path: Path) -> None:
            if may_ask:
                requests.ask(path, monotonic())

        deadline_s = monotonic() + PERMISSION_S
        while True:
            outcome = restore_leftover(folder, roots, ask_permission=ask, write=write or write_limit)
            if not (may_ask and _wants_permission(outcome) and monotonic() < deadline_s):
                return outcome
            sleep(POLL_S)

    return [one(folder) for folder in run_folders]


def said(policy: str, cap: PolicyCap) -> str:
    """One line for people."""
    if cap.refusal:
        return f"{policy}: not put back: {cap.refusal.detail}"
    return f"{policy}: {cap.in_force_khz} kHz again"


def _wants_permission(outcome: CapOutcome) -> bool:
    return any(refusal.kind == "permission" for refusal in outcome.refused.values())
