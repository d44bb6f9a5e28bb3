"""One decoder under QEMU: says by marks when a step begins and when it ends (`bench/emulated/count.c`).

    guest.py FOLDER GRAPH ROWS@POSITION…

The last line of its output names what computed.
"""

from __future__ import annotations

import json
import os
import sys

from bench.peers.bare_graph_peer import BareGraph

# As in count.c.
MARK = 0x6D6B00
PIECE = 128


def mark(number: int) -> None:
    try:
        os.getsid(MARK + number)
    except ProcessLookupError:
        return
    raise RuntimeError(f"there is a process {MARK + number}")


def main(folder: str, graph: str, runs: list[str]) -> None:
    """Marks 2n and 2n + 1 are around the step of run n, and the last two around a piece of a prompt."""
    steps = [(int(rows), int(past)) for rows, past in (run.split("@") for run in runs)]
    bare = BareGraph(max(rows for rows, _ in steps), graph)
    bare.start()
    facts = bare.load(folder, 1, max(past for _, past in steps) + PIECE)
    # What a first run prepares, in the runtime and in Python, is no part of a token.
    bare.prompt(PIECE)
    for number, (rows, past) in enumerate(steps):
        bare.steps(past, rows, 2)
        mark(2 * number)
        bare.steps(past, rows, 1)
        mark(2 * number + 1)
    mark(2 * len(steps))
    bare.prompt(PIECE)
    mark(2 * len(steps) + 1)
    bare.stop()
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
