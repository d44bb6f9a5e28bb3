"""Is the wall clock plausible?

Boards without a battery-backed clock start in 1970 or at the time of the last shutdown. The service measures with
the monotonic clock, so it works; log stamps are wrong, and TLS connections to elsewhere fail.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import magnitude
from magnitude.board.boot import EARLIEST_S
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

DAY_S = 86400.0


def check(context: DoctorContext) -> Finding:
    now_s = context.wall_clock()
    # The program cannot run before it was installed.
    installed_s = Path(magnitude.__file__).stat().st_mtime
    now = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    if now_s < EARLIEST_S or now_s < installed_s - DAY_S:
        return Finding(
            level="warning",
            title="The clock is behind",
            detail=f"It says {now}, which is before this program was installed",
            advice="Let the board set it: `timedatectl set-ntp true`, or add a battery for its clock",
        )
    return Finding(level="ok", title="The clock is plausible", detail=now)
