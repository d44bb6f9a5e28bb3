"""Whether there is memory for a further session. Pure."""

from __future__ import annotations

import msgspec

from magnitude.governor.memory_ladder import Step
from magnitude.models.ledger import reserve

# While a session is made, ONNX Runtime holds what it reads beside what it packs; so much more than what stays is
# free before one is begun. A guess on the safe side: 125 MB stayed for SmolLM2-135M.
PEAK_OVER_STAY = 1.25


class SessionBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Memory at one moment. `room_bytes` is the least that is left anywhere (None: unknown), `step` how far the
    governor of memory has gone. Of `account_bytes`, which models and their sessions may take together, `models_bytes`
    belong to models and `sessions_bytes` to further sessions, made or being made. `limit_bytes` is the most for all
    further sessions (None: what is left)."""

    room_bytes: int | None
    step: Step
    account_bytes: int
    models_bytes: int
    sessions_bytes: int
    limit_bytes: int | None = None

    def refusal(self, needed_bytes: int) -> str:
        """Why a session of `needed_bytes` is not to be made now, or ""."""
        if self.step != "normal":
            return f"memory is short (step {self.step})"
        if self.limit_bytes is not None and self.sessions_bytes + needed_bytes > self.limit_bytes:
            return (
                f"further sessions would take {_mb(self.sessions_bytes + needed_bytes)}, more than "
                f"policy.session_memory_bytes ({_mb(self.limit_bytes)})"
            )
        together = self.models_bytes + self.sessions_bytes + needed_bytes
        if together > self.account_bytes:
            return f"models and sessions would take {_mb(together)} of {_mb(self.account_bytes)}"
        if self.room_bytes is not None:
            spare_bytes = self.room_bytes - reserve(self.room_bytes)
            if needed_bytes * PEAK_OVER_STAY > spare_bytes:
                return f"it needs {_mb(needed_bytes * PEAK_OVER_STAY)} to be made, {_mb(spare_bytes)} are free"
        return ""


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.0f} MB"
