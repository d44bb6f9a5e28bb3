"""One look at the board for the checks that judge it."""

from __future__ import annotations

import msgspec

from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import find_profile
from magnitude.board.sampler import Sampler
from magnitude.board.snapshot import Snapshot
from magnitude.doctor.context import DoctorContext


class BoardView(msgspec.Struct, frozen=True, kw_only=True):
    """What the board says, and what is known of boards of its kind."""

    snapshot: Snapshot
    profile: BoardProfile


def look(context: DoctorContext) -> BoardView:
    """Reads the files anew; takes milliseconds, and up to two seconds where a sensor does not answer."""
    profile = find_profile(context.roots)
    sampler = Sampler(context.roots, profile, affinity=context.affinity)
    try:
        return BoardView(snapshot=sampler.read(context.monotonic()), profile=profile)
    finally:
        sampler.close()
