"""One decoder under QEMU: says by marks when a step begins and when it ends (`bench/emulated/count.c`).

    guest.py FOLDER GRAPH POSITION…

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


def main(folder: str, graph: str, positions: list[int]) -> None:
    """Marks 2n and 2n + 1 are around a step at the position n, and the last two around a piece of a prompt."""
    bare = BareGraph(1, graph)
    bare.start()
    facts = bare.load(folder, 1, max(positions) + PIECE)
    # What a first run prepares, in the runtime and in Python, is no part of a token.
    bare.steps(0, 1, 2)
    bare.prompt(PIECE)
    for number, position in enumerate(positions):
        bare.steps(position, 1, 1)
        mark(2 * number)
        bare.steps(position, 1, 1)
        mark(2 * number + 1)
    mark(2 * len(positions))
    bare.prompt(PIECE)
    mark(2 * len(positions) + 1)
    bare.stop()
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(position) for position in sys.argv[3:]])
