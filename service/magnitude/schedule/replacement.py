"""Another engine on request, and the answer to whoever asked for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from magnitude.errors import EngineNotReady
from magnitude.schedule.inference import Recycled
from magnitude.schedule.report import EngineView
from magnitude.supervise.lifecycle import Phase

# Who asks for another engine waits so long for it: a spare is started first where there is none (20 s at most), and
# then it loads. On a slow card that takes longer; the answer says then that it is not there yet.
RECYCLE_WITHIN_S = 60.0


async def replace_engine(
    engine: EngineView, reason: str, *, open_requests: int, clock: Callable[[], float]
) -> Recycled:
    """Returns when the next one serves. Raises `EngineNotReady` when there is none to replace."""
    if engine.lifecycle.phase is not Phase.UP:
        raise EngineNotReady(
            f"there is no engine to replace: {engine.lifecycle.reason}", hint="Ask again once it serves"
        )
    started_s = clock()
    with contextlib.suppress(TimeoutError):
        # Shielded: who asked may leave, the engine is replaced all the same.
        await asyncio.wait_for(asyncio.shield(engine.recycle(reason)), RECYCLE_WITHIN_S)
    return Recycled(reason=reason, engine_pid=engine.pid, took_s=clock() - started_s, open_requests=open_requests)
