"""A board that loses power while it works boots again and serves, however often. Takes minutes: not part of CI.

pytest -m on_demand tests/system/boot/test_power_loss_on_demand.py
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from guest_session import CLIENT, Answer, Guests, wait_ready

pytestmark = [pytest.mark.system, pytest.mark.on_demand]

ROUNDS = 4  # five minutes
TOKENS = 200
# Conversations are saved, records written, answers streamed, wherever the cut falls.
LONGEST_WORK_S = 20.0


def test_a_board_that_loses_power_while_it_works_boots_and_serves_each_time(guests: Guests, tmp_path: Path) -> None:
    texts = set()
    rng = random.Random(1)
    disk = guests.new_disk(tmp_path / "disk.qcow2")
    for number in range(ROUNDS):
        with guests.booted(disk, tmp_path / f"run-{number}") as guest:
            wait_ready(guest)
            texts.add(Answer(guest, TOKENS).whole()["text"])
            guest.check(f"systemd-run --unit=work {CLIENT} streams {TOKENS} /var/tmp/answers")
            time.sleep(rng.uniform(0, LONGEST_WORK_S))
            guest.cut_power()
    assert len(texts) == 1
