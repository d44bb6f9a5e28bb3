"""Simulated runs, which compute and need no quiet machine, on all CPUs at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

Work = TypeVar("Work", bound=Hashable)
Result = TypeVar("Result")


def in_parallel(
    do: Callable[[Work], Result], works: Sequence[Work], progress: Callable[[int], None] = lambda done: None
) -> dict[Work, Result]:
    """What `do`, a function of a module, makes of each of `works`, in their order. `progress` is told how many are
    done. Raises whatever `do` raises."""
    results: dict[Work, Result] = {}
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(do, work): work for work in works}
        for future in as_completed(running):
            results[running[future]] = future.result()
            progress(len(results))
    return {work: results[work] for work in works}
