"""One look at the board for the checks that judge it."""

from __future__ import annotations

import msgspec

from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import profile_of
from magnitude.board.sampler import Sampler
from magnitude.board.snapshot import Snapshot
from magnitude.doctor.context import DoctorContext


class BoardView(msgspec.Struct, frozen=True, kw_only=True):
    """What the board says, and what is known of boards of its kind."""

    snapshot: Snapshot
    profile: BoardProfile


def look(context: DoctorContext) -> BoardView:
    """The board as the first check that asks finds it: a look takes milliseconds, but up to two seconds where a
    sensor does not answer."""
    seen = context.looked.get("board")
    if not isinstance(seen, BoardView):
        seen = context.looked["board"] = _look(context)
    return seen


def _look(context: DoctorContext) -> BoardView:
    profile = profile_of(context.settings.board.profile, context.roots)
    sampler = Sampler(context.roots, profile, affinity=context.affinity)
    try:
        return BoardView(snapshot=sampler.read(context.monotonic()), profile=profile)
    finally:
        sampler.close()
