"""What the other verbs of `scripts/bench policy` make of their runs, and the loads that they ask for."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest

from bench.cpu_share import CpuShare
from bench.policy_cost import Block, Idle, cost_result
from bench.policy_courses import (
    ONE,
    TWO,
    Course,
    most_in_an_hour,
    noise_result,
    noisy,
    survivor_course,
    survivors_result,
)
from bench.policy_figures import LOOP, LoadRun
from bench.policy_load import Fixed, Kept, LoadPlan, LoadResult
from bench.policy_plot import draw, draw_load, timeline
from bench.policy_restart import Start, restart_result
from bench.policy_simulated import Job, jobs, missed, outcomes, run_job, thread_pairs
from bench.policy_work import SHARES, PhaseRun, phases, said
from magnitude.board.profiles import load_profile
from magnitude.board.roots import HostRoots
from magnitude.policy.rules import Rules

PLAN = LoadPlan(rounds=2, threads=(1, 2), chunks=(64, 128), scale=1.0, learning_s=0.0)


def test_the_load_has_every_kind_of_work_with_all_and_with_half_of_the_processor() -> None:
    load = phases()
    assert {phase.kind for phase in load} == {"short", "long", "agents", "embeddings"}
    assert {phase.kind for phase in load if phase.share == "half"} == {"short", "long", "agents", "embeddings"}
    assert {phase.clients for phase in load if phase.kind == "agents"} == {1, 2, 4}
    halves = [phase.share for phase in load]
    assert halves[0] == halves[-1] == "whole", "it drops in the middle and comes back"
    assert sum(one != other for one, other in itertools.pairwise(halves)) == 2
    assert all(phase.requests >= 1 for phase in phases(0.01))
    assert SHARES == {"whole": 1.0, "half": 0.5}


def test_the_same_seed_says_the_same() -> None:
    assert said(random.Random("1-0-0"), 30) == said(random.Random("1-0-0"), 30) != said(random.Random("1-0-1"), 30)
    assert len(said(random.Random(1), 30).split()) == 30


def test_the_sweep_takes_each_with_each() -> None:
    assert len(PLAN.fixed) == len(set(PLAN.contenders) - {"shipped default", LOOP}) == 8
    assert Fixed(decode=1, prefill=2, chunk=64) in PLAN.fixed


def test_a_run_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    first = Kept(path, LoadResult(plan=PLAN, share="quota"))
    first.add(LoadRun(contender=LOOP, round=0, phases=()))
    assert Kept(path, LoadResult(plan=PLAN, share="quota")).has(LOOP, 0)
    assert not Kept(path, LoadResult(plan=PLAN, share="affinity")).has(LOOP, 0)
    other = msgspec.structs.replace(PLAN, scale=0.5)
    assert not Kept(path, LoadResult(plan=other, share="quota")).has(LOOP, 0)


def test_where_no_control_group_can_be_made_affinity_stands_in_and_says_so(tmp_path: Path) -> None:
    roots = HostRoots.under(tmp_path)
    (roots.proc / "self").mkdir(parents=True)
    (roots.proc / "self/cgroup").write_text("1:cpu:/\n")
    mount = roots.cgroup / "cpu"
    mount.mkdir(parents=True)

    share = CpuShare(roots)
    assert share.how.startswith("affinity"), "a folder that the kernel puts no files into has no quota"
    assert list(mount.iterdir()) == [], "nothing is left behind"
    assert share.command(("serve",)) == ("serve",)


def test_processor_time_is_summed_over_blocks() -> None:
    blocks = [
        Block(requests=10, on_cpu_s=10.0, off_cpu_s=10.0, loop_cpu_s=0.2, on_s=5.0, off_s=5.0) for _ in range(4)
    ]
    idle = Idle(seconds=600.0, on_cpu_s=9.0, off_cpu_s=3.0, loop_cpu_s=6.0, probes=4)
    result = cost_result(blocks, idle)
    assert result.loop_share == pytest.approx(0.02)
    assert result.cpu_ratio.value == pytest.approx(1.0)
    assert result.idle_share == pytest.approx(0.01)
    assert result.idle_difference == pytest.approx(0.01)
    assert len(result.missed) == 2


def test_requests_are_paired_by_their_place_and_the_first_decision_is_to_be_the_dumped_one() -> None:
    def start(with_dump: bool, first: str, *times: float) -> Start:
        return Start(with_dump=with_dump, first=first, after_s=0.1, request_s=times)

    starts = [start(True, "two", 1.0, 2.0, 3.0), start(False, "one", 2.0, 4.0, 6.0)]
    result = restart_result("two", 30.0, starts)
    assert result.equal
    assert result.ratio.value == pytest.approx(0.5)
    assert result.missed == []
    wrong = restart_result("two", 30.0, [start(True, "one", 1.0), start(False, "one", 1.0)])
    assert wrong.missed == ["after a restart one is in force, dumped was two"]


def test_the_busiest_hour_is_found_wherever_it_begins() -> None:
    assert most_in_an_hour([]) == 0
    assert most_in_an_hour([0.0, 3599.0, 3600.0, 7198.0]) == 3
    result = noise_result("each run", 0.0, 2.0, [([0.0, 10.0, 20.0], False), ([], True)])
    assert (result.worst_hour, result.switches_an_hour, result.ended_wrong) == (3, 0.75, 1)
    assert len(result.missed) == 1


def test_noise_stays_within_its_bounds_and_is_shared_as_said() -> None:
    chance = random.Random(1)
    for kind in ("each run", "each second", "each minute", "each session and second"):
        scatter = noisy(kind, 1)  # type: ignore[arg-type]
        assert all(0.7 <= scatter(chance, 0.1 * at, ONE) <= 1.3 for at in range(200))
    second, own = noisy("each second", 1), noisy("each session and second", 1)
    assert second(chance, 5.1, ONE) == second(chance, 5.9, TWO) != second(chance, 6.1, ONE)
    assert own(chance, 5.1, ONE) == own(chance, 5.9, ONE) != own(chance, 5.9, TWO)


def test_a_course_finds_a_faster_session_and_keeps_still_without_one() -> None:
    faster = Course(Rules(), {ONE: 0.8}, seed=1)
    faster.run(0.5)
    assert faster.engine.strategy.decode == ONE
    equal = Course(Rules(), {ONE: 1.1}, seed=1, scatter=noisy("each run", 1))
    equal.run(0.5)
    assert equal.switches() == []
    assert equal.engine.strategy.decode == TWO


def test_a_strategy_that_only_some_tasks_survive_is_left() -> None:
    failing = survivor_course("session", 0.8, 1, 1.5, failing=True)
    without = survivor_course("session", 0.8, 1, 1.5, failing=False)
    assert not failing.ends_with
    assert without.ends_with
    result = survivors_result("session", 0.8, 1.5, [failing], [without])
    assert result.missed == []
    other = survivors_result("session", 0.8, 1.5, [without], [failing])
    assert len(other.missed) == 2
    late = survivors_result("session", 0.8, 1.5, [msgspec.structs.replace(failing, last_share=0.3)], [without])
    assert ["30.0% of the last quarter" in line for line in late.missed] == [True]


def test_every_pair_of_threads_that_may_be_best_is_run() -> None:
    assert thread_pairs(load_profile("pi5-bare")) == [(4, 1), (4, 2), (4, 3), (4, 4)]
    rock = thread_pairs(load_profile("rock5b"))
    assert (4, 2) in rock and (4, 4) in rock and (8, 8) in rock
    assert len(jobs(1.0)) == 3 * (2 * (3 + 4) + (3 + len(rock)))


def test_the_loop_on_a_simulated_board_is_told_beside_all_cores() -> None:
    results = {
        job: run_job(job).summary
        for job in (
            Job(board="rock5b", load="steady", hours=0.15, contender="all cores"),
            Job(board="rock5b", load="steady", hours=0.15, contender="loop"),
            Job(board="rock5b", load="steady", hours=0.15, threads=(4, 4)),
        )
    }
    found = outcomes(results)
    assert [one.contender for one in found] == ["best fixed: 4, 4", "loop"]
    assert found[1].speed is not None and found[1].speed > 1.25
    assert missed(found) == []
    slow = [msgspec.structs.replace(found[1], speed=1.1), found[0]]
    assert "1.100 x the tokens/s (loop)" in missed(slow)[0]


def test_the_timeline_begins_with_all_cores_and_ends_with_the_big_ones() -> None:
    line = timeline("rock5b", "steady", 0.1)
    assert line.chosen[0][1:] == (8, 8)
    assert line.chosen[-1][2] <= 4
    assert line.steps and line.pieces and line.switches
    before = [each_s for at_s, each_s in line.steps if at_s < 50]
    after = [each_s for at_s, each_s in line.steps if at_s > line.switches[-1] + 30]
    assert max(after) < min(before)


def test_both_timelines_are_drawn(tmp_path: Path) -> None:
    load = phases()
    runs = [
        LoadRun(
            contender=name,
            round=at,
            phases=tuple(PhaseRun(phase=phase.name, seconds=1.0 + at, request_s=(0.5,), tokens=9) for phase in load),
            strategies=tuple(Fixed(decode=2, prefill=1, chunk=128).name for _ in load),
        )
        for at in range(2)
        for name in ("shipped default", "fixed", LOOP)
    ]
    for target, begin in ((tmp_path / "a.svg", b"<?xml"), (tmp_path / "a.png", b"\x89PNG")):
        draw_load(runs, target)
        assert target.read_bytes().startswith(begin)
    simulated = tmp_path / "b.png"
    draw("pi5-cooler", "steady", 0.1, simulated)
    assert simulated.read_bytes().startswith(b"\x89PNG")
