"""Work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from magnitude.errors import Cancelled

Result = TypeVar("Result")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, unless the client disconnects first: then `work` is cancelled and `Cancelled` raised.

    The request's body must have been read before. The end of `work` is awaited in every case, so that whatever it
    holds is given back by the time this returns; nothing is left to the garbage collector.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await _stop(task)
            if task.cancelled() or task.exception() is not None:
                raise Cancelled("The client went away")
        return task.result()
    finally:
        await _stop(watch)
        await _stop(task)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
