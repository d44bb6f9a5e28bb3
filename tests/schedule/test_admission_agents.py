"""Agents that compute and wait: what the slots deliver beside what the formula says.

`python tests/schedule/test_admission_agents.py` prints the table in docs/scheduling.md.
"""

import math
import random
from typing import NamedTuple

import pytest
from admission_simulation import Job, Simulation

SLOTS = 4
COMPUTE_S = 2.0
WAIT_S = 6.0
LONG_S = 1000.0


class Run(NamedTuple):
    utilisation: float  # share of the compute slots' time that was used: throughput by the saturated one
    wait_p95_s: float
    limit: float  # conversations, by the formula, at 70 %


def agents(count: int, *, even: bool, seed: int = 1) -> Run:
    """`count` agents take turns of `COMPUTE_S` with `WAIT_S` between them, exactly or exponentially distributed."""
    draw = random.Random(seed)
    simulation = Simulation(slots=SLOTS)

    def length(mean_s: float) -> float:
        return mean_s if even else draw.expovariate(1.0 / mean_s)

    def turn(name: str) -> None:
        work_s = length(COMPUTE_S)
        simulation.submit(work_s, client="key", conversation=name, task="tool", max_new_tokens=50)

    def next_turn(job: Job) -> None:
        name = job.submit.conversation
        simulation.at(simulation.now_s + length(WAIT_S), lambda: turn(name))

    simulation.ended = next_turn
    for number in range(count):
        name = f"agent{number}"
        simulation.at(draw.uniform(0, COMPUTE_S + WAIT_S), lambda name=name: turn(name))  # type: ignore[misc]
    simulation.run(until_s=LONG_S)
    waits_s = sorted(job.waited_s for job in simulation.jobs.values() if job.runs)
    return Run(
        utilisation=simulation.busy_s / (SLOTS * simulation.now_s),
        wait_p95_s=waits_s[int(0.95 * len(waits_s))],
        limit=simulation.admission.figures(simulation.now_s)[0].capacity.limit,
    )


def queueing_theory(count: int) -> float:
    """Share of the slots' time that `count` agents use, with exponential times of both kinds: the machine-repair
    model (M/M/c//N), in closed form."""
    ratio = COMPUTE_S / WAIT_S
    weights = []
    for busy in range(count + 1):
        orders = math.factorial(min(busy, SLOTS)) * SLOTS ** max(0, busy - SLOTS)
        weights.append(math.perm(count, busy) / orders * ratio**busy)
    return sum(min(busy, SLOTS) * weight for busy, weight in enumerate(weights)) / sum(weights) / SLOTS


def test_sixteen_even_agents_with_three_times_as_much_wait_as_compute_keep_four_slots_busy() -> None:
    run = agents(16, even=True)
    assert run.utilisation > 0.97


def test_uneven_agents_get_most_of_the_saturated_throughput() -> None:
    run = agents(16, even=False)
    assert run.utilisation > 0.85


@pytest.mark.parametrize("count", [4, 8, 16, 24])
def test_admission_adds_no_loss_of_its_own_to_what_queueing_theory_gives(count: int) -> None:
    assert agents(count, even=False).utilisation == pytest.approx(queueing_theory(count), abs=0.04)


def test_at_the_limit_of_the_formula_hardly_anybody_waits() -> None:
    limit = int(0.7 * SLOTS * (1 + WAIT_S / COMPUTE_S))
    run = agents(limit, even=False)
    assert run.utilisation == pytest.approx(0.7, abs=0.07)
    assert run.wait_p95_s < COMPUTE_S


def test_the_limit_is_found_by_measuring() -> None:
    run = agents(16, even=False)
    assert run.limit == pytest.approx(0.7 * SLOTS * (1 + WAIT_S / COMPUTE_S), rel=0.35)


if __name__ == "__main__":
    print("| agents | even: throughput | wait, p95 | uneven: throughput | by theory | wait, p95 |")
    print("|---|---|---|---|---|---|")
    for count in (4, 8, 11, 16, 24, 32):
        even, uneven = agents(count, even=True), agents(count, even=False)
        cells = [
            f"{even.utilisation:.2f}",
            f"{even.wait_p95_s:.1f} s",
            f"{uneven.utilisation:.2f}",
            f"{queueing_theory(count):.2f}",
            f"{uneven.wait_p95_s:.1f} s",
        ]
        print(f"| {count} | {' | '.join(cells)} |")
