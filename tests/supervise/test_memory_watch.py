"""The watch over a tree of kernel files that moves."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.config.memory import MemorySettings
from magnitude.supervise.memory_watch import EngineFigures, MemoryWatch

G = "sys/fs/cgroup/magnitude.service"
LIMIT = 1_000_000_000
ENGINE = 4711


def status(anon_mb: int) -> str:
    return f"Name:\tx\nState:\tR (running)\nVmRSS:\t{anon_mb * 1000} kB\nRssAnon:\t{anon_mb * 1000} kB\nVmSwap:\t0 kB"


def stat(started: int = 1) -> str:
    return f"1 (x) R {' '.join('0' * 18)} {started} 0 0"


class Done:
    """The actions, written down."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def trim(self) -> None:
        self.calls.append("trim")

    def shrink_kv(self, share: float) -> None:
        self.calls.append(f"shrink_kv {share}")

    def unload_idle(self) -> None:
        self.calls.append("unload_idle")

    def long_prompts(self, tokens: int) -> None:
        self.long = tokens

    def refuse_long(self, on: bool) -> None:
        self.calls.append(f"refuse_long {on}")

    def shed(self, reason: str) -> None:
        self.calls.append("shed")

    def recycle(self, reason: str) -> None:
        self.calls.append("recycle")

    def restart(self, reason: str) -> None:
        self.calls.append("restart")

    def normal(self) -> None:
        self.calls.append("normal")

    def models_may_take(self, free_bytes: int) -> None:
        pass


class Board:
    """A board with a group whose use can be set, and a clock that goes on 5 s a look."""

    def __init__(self, root: Path, settings: MemorySettings | None = None, **files: str | int) -> None:
        self.root = root
        self.roots = write_tree(
            root,
            {
                "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB",
                "proc/self/cgroup": "0::/magnitude.service",
                f"proc/{os.getpid()}/status": status(60),
                f"proc/{os.getpid()}/stat": stat(),
                f"proc/{ENGINE}/status": status(400),
                f"proc/{ENGINE}/stat": stat(),
                f"{G}/memory.max": LIMIT,
                f"{G}/memory.current": LIMIT // 2,
                **files,
            },
        )
        self.done = Done()
        self.told: list[str] = []
        self.now_s = 0.0
        self.figures = EngineFigures(pid=ENGINE, planned_bytes=400_000_000, runs=0)
        self.watch = MemoryWatch(
            settings or MemorySettings(),
            self.done,
            engine=lambda: self.figures,
            roots=self.roots,
            environ={},
            told=lambda step, what, reason: self.told.append(step),
            clock=lambda: self.now_s,
        )

    def use(self, percent: int) -> None:
        write_tree(self.root, {f"{G}/memory.current": LIMIT * percent // 100})

    def look(self, times: int = 1) -> None:
        async def looks() -> None:
            for _ in range(times):
                await self.watch.look()
                self.now_s += 5.0

        asyncio.run(looks())


def test_the_steps_come_in_order_and_are_shown_with_their_figures(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.look(3)
    assert board.done.calls == []
    board.use(90)
    board.look(30)
    assert board.done.calls[:2] == ["trim", "shrink_kv 0.5"]
    assert [call for call in board.done.calls if call in ("recycle", "restart")] == ["recycle"]
    state = board.watch.state()
    assert state.step == "recycle"
    assert (state.limit_bytes, state.pressure_bytes, state.pressure_percent) == (LIMIT, LIMIT * 90 // 100, 90.0)
    assert state.memory_limit == str(tmp_path / G)
    assert "900 MB of 1000 MB (90 %" in state.last_steps[0].reason
    assert state.steps["recycle"] == 1
    assert board.told[:2] == ["trim", "shrink_kv"]
    assert board.told.count("recycle") == 1
    assert state.thresholds_percent["recycle"] == 89
    assert board.watch.step_text() == "recycle (90 %)"
    board.use(50)
    board.look(60)
    assert board.watch.state().step == "normal"
    assert board.done.calls[-2:] == ["shrink_kv 1.0", "normal"]


def test_a_limit_that_is_raised_at_run_time_ends_the_shortage(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.use(82)
    board.look(10)
    assert board.watch.state().step == "unload_idle"
    write_tree(board.root, {f"{G}/memory.max": 4 * LIMIT})
    board.look(60)
    assert board.watch.state().step == "normal"


def test_settings_that_change_hold_from_the_next_look_on(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.use(65)
    board.look(3)
    assert board.done.calls == []
    board.watch.tune(MemorySettings(thresholds_percent=[60, 80, 85, 90, 95, 99], long_prompt_tokens=77))
    board.look()
    assert board.done.calls == ["trim"]
    assert board.done.long == 77


def test_switching_it_off_in_a_shortage_takes_back_what_was_taken(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.use(86)
    board.look(20)
    assert board.watch.state().step == "refuse_long"
    board.watch.tune(MemorySettings(enabled=False))
    board.look(5)
    assert board.done.calls[-3:] == ["refuse_long False", "shrink_kv 1.0", "normal"]
    assert board.watch.state().step == "normal"


def test_when_switched_off_memory_is_shown_and_nothing_done(tmp_path: Path) -> None:
    board = Board(tmp_path, MemorySettings(enabled=False))
    board.use(99)
    board.look(50)
    assert board.done.calls == []
    assert board.watch.state().pressure_percent == 99.0
    assert not board.watch.state().enabled


def test_a_board_without_psi_and_memory_controller_says_so_with_the_boot_options(tmp_path: Path) -> None:
    tree = {"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids"}
    board = Board(tmp_path, None, **tree)
    (tmp_path / G / "memory.max").unlink()
    (tmp_path / G / "memory.current").unlink()
    board.look()
    state = board.watch.state()
    assert (state.memory_limit, state.psi, state.watch) == ("none", "unavailable", "none")
    assert any("cgroup_enable=memory" in hint for hint in state.hints)
    assert any("psi=1" in hint for hint in state.hints)


def test_without_a_limit_the_service_keeps_its_own_budget(tmp_path: Path) -> None:
    board = Board(tmp_path, MemorySettings(own_limit_percent=50))
    (tmp_path / G / "memory.max").unlink()
    write_tree(
        tmp_path,
        {f"proc/{ENGINE}/status": status(1900), "proc/meminfo": "MemTotal: 4000000 kB\nMemAvailable: 1900000 kB"},
    )
    board.figures = EngineFigures(pid=ENGINE)
    board.look(40)
    state = board.watch.state()
    assert state.limit_path == "own budget"
    assert (state.limit_bytes, state.own_bytes) == (2_000_000 * 1024, 1_960_000 * 1024)
    assert "recycle" in board.done.calls


def test_the_engines_own_group_counts_too_when_its_limit_is_nearer(tmp_path: Path) -> None:
    tree = {
        f"proc/{ENGINE}/cgroup": "0::/magnitude.service/engine",
        f"{G}/engine/memory.max": 700_000_000,
        f"{G}/engine/memory.current": 600_000_000,
    }
    board = Board(tmp_path, None, **tree)
    board.look()
    state = board.watch.state()
    assert (state.limit_bytes, state.limit_path) == (700_000_000, str(tmp_path / G / "engine"))
    assert state.memory_limit == str(tmp_path / G / "engine")
    assert state.step == "trim"


def test_a_spare_engine_counts_as_held_and_is_not_taken_for_the_one_that_serves(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.figures = EngineFigures(pid=4242, spare_pid=ENGINE, planned_bytes=1)
    board.look()
    state = board.watch.state()
    assert state.own_bytes == 460_000 * 1024
    assert state.engine_own_bytes is None


def test_an_engine_that_ended_meanwhile_is_no_error(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.figures = EngineFigures(pid=4242, planned_bytes=1)
    board.look(3)
    assert board.watch.state().engine_own_bytes is None


def test_an_engine_beyond_its_plan_is_replaced_though_there_is_memory(tmp_path: Path) -> None:
    board = Board(tmp_path)
    write_tree(tmp_path, {f"proc/{ENGINE}/status": status(700)})
    board.look(10)
    assert board.done.calls == ["trim", "recycle"]
    assert board.watch.state().step == "normal"


def test_memory_high_below_the_peak_sheds_replaces_the_engine_and_restarts(tmp_path: Path) -> None:
    board = Board(tmp_path)
    write_tree(tmp_path, {f"{G}/memory.high": 629145600, f"{G}/memory.current": 320000000})
    high = 10
    for number in range(20):
        board.figures = EngineFigures(pid=ENGINE, planned_bytes=400_000_000, runs=100 * min(number, 5), busy=True)
        if number > 5:
            high += 25000
            write_tree(tmp_path, {f"{G}/memory.current": 300000000})
        write_tree(tmp_path, {f"{G}/memory.events": f"low 0\nhigh {high}\nmax 0\noom 0\noom_kill 0"})
        board.look()
    assert [call for call in board.done.calls if call in ("shed", "recycle", "restart")] == ["shed", "recycle"]
    assert board.watch.state().high_events == high


def test_an_action_that_fails_does_not_keep_the_next_one_from_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board(tmp_path)

    def fails() -> None:
        raise OSError("no")

    board.done.trim = fails  # type: ignore[method-assign]
    board.use(80)
    board.look(10)
    assert "unload_idle" in board.done.calls


def test_an_alarm_is_answered_at_once_and_not_at_the_next_look(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    board = Board(tmp_path / "board", MemorySettings(check_every_s=300))
    watch = MemoryWatch(
        MemorySettings(check_every_s=300),
        board.done,
        engine=lambda: board.figures,
        roots=board.roots,
        environ={"MEMORY_PRESSURE_WATCH": str(pipe)},
    )

    async def main() -> None:
        task = asyncio.create_task(watch.run())
        while watch.state().watch != "systemd":
            await asyncio.sleep(0.01)
        other_end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        os.write(other_end, b"x")
        for _ in range(1000):
            if board.done.calls:
                break
            await asyncio.sleep(0.01)
        task.cancel()
        os.close(other_end)

    asyncio.run(main())
    assert board.done.calls == ["trim"]
