"""Who is to blame for a SIGKILL: the kernel for want of memory, or somebody else."""

from __future__ import annotations

import pytest

from magnitude.supervise.oom_witness import LOOK_EVERY_S, OomWitness


class Kernel:
    """Counts kills; time passes only here."""

    def __init__(self) -> None:
        self.kills: int | None = 3
        self.now_s = 0.0
        self.looks = 0

    def count(self) -> int | None:
        self.looks += 1
        return self.kills

    def witness(self) -> OomWitness:
        return OomWitness(self.count, clock=lambda: self.now_s)

    def beats(self, witness: OomWitness, for_s: float) -> None:
        for _ in range(int(for_s / 0.5)):
            self.now_s += 0.5
            witness.alive()


def test_a_kill_of_this_moment_is_laid_to_the_kernel() -> None:
    kernel = Kernel()
    witness = kernel.witness()
    kernel.beats(witness, 60)
    kernel.kills = 4
    assert witness.kernel_has_killed()


def test_a_kill_that_the_process_has_outlived_says_nothing_about_its_own_end() -> None:
    kernel = Kernel()
    witness = kernel.witness()
    kernel.kills = 4  # another process, long ago
    kernel.beats(witness, 60)
    assert not witness.kernel_has_killed()


@pytest.mark.parametrize("late_s", [0.0, LOOK_EVERY_S])
def test_a_sign_of_life_that_is_read_after_the_death_hides_nothing(late_s: float) -> None:
    kernel = Kernel()
    witness = kernel.witness()
    kernel.beats(witness, 60)
    kernel.kills = 4
    kernel.now_s += late_s
    witness.alive()
    assert witness.kernel_has_killed()


def test_the_count_is_read_every_few_seconds_and_not_at_each_sign_of_life() -> None:
    kernel = Kernel()
    witness = kernel.witness()
    kernel.looks = 0
    kernel.beats(witness, 60)
    assert kernel.looks <= 60 / LOOK_EVERY_S


def test_where_nobody_counts_the_kernel_is_never_blamed() -> None:
    kernel = Kernel()
    kernel.kills = None
    assert not kernel.witness().kernel_has_killed()
