"""A thread that was moved goes back to where the process may run now, not to where it could at its start."""

from __future__ import annotations

import os
import subprocess
import sys

# In a process of its own, whose CPUs can be taken away.
MOVED = """
import os, threading
from magnitude.engine.thread_place import ThreadPlace
from magnitude.engine.session_spec import SessionSpec

stays = threading.Thread(target=threading.Event().wait, daemon=True)
stays.start()
place, cpus = ThreadPlace(), sorted(os.sched_getaffinity(0))
one, all_of_them = {cpus[0]}, set(cpus)

place.go(SessionSpec(threads=1, cpus=(cpus[-1],)))
assert os.sched_getaffinity(0) == {cpus[-1]}
place.go(None)
assert os.sched_getaffinity(0) == all_of_them

for thread in (0, stays.native_id):  # as taskset does it from outside
    os.sched_setaffinity(thread, one)
place.settle(())
assert os.sched_getaffinity(0) == one
place.leave()
assert os.sched_getaffinity(0) == one

os.sched_setaffinity(stays.native_id, all_of_them)
place.leave()
assert os.sched_getaffinity(0) == all_of_them
print("done")
"""


def test_cpus_that_were_taken_away_from_outside_are_not_taken_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MOVED], env=dict(os.environ), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "done\n", done.stderr
