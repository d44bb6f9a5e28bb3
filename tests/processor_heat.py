"""What the sampler says of a tree of files, in one number."""

from __future__ import annotations

from magnitude.board.profile import BoardProfile
from magnitude.board.profiles import find_profile
from magnitude.board.roots import HostRoots
from magnitude.board.sampler import Sampler


def processor_temp_c(roots: HostRoots, profile: BoardProfile | None = None) -> float | None:
    """The warmest sensor at the processor. Without `profile` the board is found by its device tree."""
    sampler = Sampler(roots, profile or find_profile(roots), clock=lambda: 0.0)
    try:
        return sampler.read(0.0).hottest_c
    finally:
        sampler.close()
