from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magnitude.feedback import record_table
from magnitude.feedback.record_file import reading
from tests.feedback.record_samples import numbers

ROUNDS = 20


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_loses_no_row_that_it_reported_committed(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    chance = random.Random(7)
    committed = 0
    for _ in range(ROUNDS):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.feedback.record_writer", str(path), str(committed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        committed = int(writer.stdout.readline())
        time.sleep(chance.uniform(0, 0.2))
        writer.kill()
        reported = [int(line) for line in writer.stdout.read().splitlines()]
        writer.wait()
        committed = max([committed, *reported])
        with reading(path) as connection:
            rows = numbers(record_table.recent(connection, 10_000_000))
        # Every row below the count that was reported is there; of the batch under way all or nothing.
        assert set(range(committed)) <= set(rows)
        assert len(set(rows)) % 5 == 0
        committed = max(rows) + 1
    assert not list(tmp_path.glob("*broken*"))
