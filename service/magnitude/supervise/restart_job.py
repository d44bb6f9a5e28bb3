"""Whether this stop is the first half of a restart.

A service that is told to stop is not told why. systemd knows: the job that is carried out on the unit is `restart`,
or it is not. It also knows how many of the service's descriptors it holds. It is asked by `systemctl`, as the bus
library for it would be a dependency of its own for two lines of text.

Whenever the answer is not certain (no systemd, no bus, a job of another kind, nobody answers in time) it is no.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from magnitude.board.roots import HostRoots, read_text

log = logging.getLogger("magnitude.supervise")

# `systemctl` answers in some 10 ms; a manager that is so busy that it does not is not worth waiting for.
ANSWER_WITHIN_S = 2.0


def unit_of(groups: str) -> tuple[str, bool]:
    """Name of the service unit that a process in these control groups (the text of /proc/self/cgroup) belongs to, and
    whether a user's own manager runs it. "" when it is in none."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers not in ("", "name=systemd"):
            continue
        services = [part for part in path.split("/") if part.endswith(".service")]
        if services:
            return services[-1], any(part.startswith("user@") for part in services[:-1])
    return "", False


def job_types(listing: str, unit: str) -> set[str]:
    """What is being done to `unit`, from what `systemctl list-jobs` prints: number, unit, type, state."""
    rows = (line.split() for line in listing.splitlines())
    return {row[2] for row in rows if len(row) >= 4 and row[1] == unit}


async def restart_follows(
    stored: int, *, roots: HostRoots | None = None, command: Sequence[str] = ("systemctl",)
) -> bool:
    """Whether systemd holds at least `stored` descriptors of this service and starts it again as soon as it has
    stopped."""
    unit, of_user = unit_of(read_text((roots or HostRoots()).proc / "self/cgroup") or "")
    if not unit:
        return False
    call = [*command, *(["--user"] if of_user else []), "--no-pager"]
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            jobs, held = await asyncio.gather(
                _answer([*call, "--no-legend", "--plain", "list-jobs", unit]),
                _answer([*call, "show", "--value", "--property=NFileDescriptorStore", unit]),
            )
    except (TimeoutError, OSError) as error:
        log.debug("the service manager does not say what it is doing", extra={"fields": {"error": str(error)}})
        return False
    return job_types(jobs, unit) == {"restart"} and held.strip().isdecimal() and int(held) >= stored


async def _answer(command: Sequence[str]) -> str:
    """What the command prints, "" when it fails. Raises `OSError` when it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output.decode("utf-8", "replace") if process.returncode == 0 else ""
