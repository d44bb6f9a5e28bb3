"""How an engine was lost: what supervision tells those who held requests in it."""

from __future__ import annotations

from typing import Literal

import msgspec

LossCause = Literal["crash", "hang", "oom", "killed", "left", "recycled", "start"]
"""`crash`: a signal of its own making; `hang`: no step within its deadline; `oom`: killed by the kernel for want of
memory; `killed`: SIGKILL from somebody else; `left`: it exited by itself; `recycled`: replaced on purpose; `start`:
it never came to serve."""

# Ends that a request can be the reason for. Who kills the engine from outside, or replaces it, does not ask what it
# was computing.
BLAMES_REQUEST: frozenset[LossCause] = frozenset({"crash", "hang", "oom", "left"})


class EngineLoss(msgspec.Struct, frozen=True):
    """`reason` is for people."""

    reason: str
    cause: LossCause

    @property
    def blames_request(self) -> bool:
        """Whether one of the requests that ran may have caused it."""
        return self.cause in BLAMES_REQUEST
