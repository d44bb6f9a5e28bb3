"""A process that records tasks as fast as it can, and says on stdout which ones were reported committed."""

from __future__ import annotations

import sys
from pathlib import Path

from magnitude.feedback.record_file import RecordLimits
from magnitude.feedback.record_store import RecordStore
from tests.feedback.record_samples import MovingClocks, row

if __name__ == "__main__":
    store = RecordStore(
        Path(sys.argv[1]), RecordLimits(max_bytes=64 * 1024 * 1024, reserve_bytes=0), clocks=MovingClocks()
    )
    number = int(sys.argv[2])
    store.start()
    while True:
        for _ in range(5):
            store.add(row(number))
            number += 1
        if store.flush():
            print(number, flush=True)
