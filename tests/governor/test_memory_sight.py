from __future__ import annotations

from magnitude.board.group_memory import GroupMemory
from magnitude.board.memory import MemorySnapshot
from magnitude.board.memory_reading import MemoryReading
from magnitude.board.memory_stall import MemoryStall
from magnitude.board.process_memory import ProcessMemory
from magnitude.governor.memory_sight import BOARD, OWN_BUDGET, sight_of

MB = 1_000_000


def memory(total_mb: int = 4000, available_mb: int = 3000) -> MemorySnapshot:
    return MemorySnapshot(
        total_bytes=total_mb * MB,
        available_bytes=available_mb * MB,
        swap_free_bytes=0,
        limit_bytes=None,
        limit_path=None,
        high_bytes=None,
        headroom_bytes=available_mb * MB,
    )


def group(path: str, limit_mb: int | None, pressure_mb: int | None, high_mb: int | None = None) -> GroupMemory:
    return GroupMemory(
        path=path,
        version=2,
        limit_bytes=None if limit_mb is None else limit_mb * MB,
        high_bytes=None if high_mb is None else high_mb * MB,
        used_bytes=None if pressure_mb is None else pressure_mb * MB,
        pressure_bytes=None if pressure_mb is None else pressure_mb * MB,
    )


def process(pid: int, own_mb: int, shared_mb: int = 0) -> ProcessMemory:
    return ProcessMemory(
        pid=pid, start_ticks=pid, anon_bytes=own_mb * MB, swap_bytes=0, shared_bytes=shared_mb * MB, file_bytes=0
    )


def test_the_fullest_group_is_the_limit_and_not_the_smallest() -> None:
    groups = (group("/a/b", 1000, 300), group("/a", 2000, 1900))
    sight = sight_of(MemoryReading(memory=memory(), groups=groups))
    assert (sight.limit_path, sight.percent) == ("/a", 95.0)
    assert sight.room_bytes == 100 * MB


def test_memory_high_counts_as_a_limit() -> None:
    sight = sight_of(MemoryReading(memory=memory(), groups=(group("/a", 2000, 580, high_mb=600),)))
    assert (sight.limit_bytes, sight.pressure_bytes) == (600 * MB, 580 * MB)


def test_the_board_is_a_limit_too_when_others_fill_it() -> None:
    reading = MemoryReading(memory=memory(available_mb=100), groups=(group("/a", 2000, 500),))
    sight = sight_of(reading)
    assert (sight.limit_path, sight.percent) == (BOARD, 97.5)


def test_without_a_group_that_limits_the_own_budget_holds() -> None:
    reading = MemoryReading(
        memory=memory(available_mb=1000),
        groups=(group("/a", None, 2900),),
        service=process(1, 100),
        engines=(process(2, 2700),),
    )
    sight = sight_of(reading, own_percent=75.0)
    assert (sight.limit_path, sight.limit_bytes, sight.pressure_bytes) == (OWN_BUDGET, 3000 * MB, 2800 * MB)
    limited = MemoryReading(
        memory=memory(available_mb=1000), groups=(group("/a", 3900, 2900),), engines=(process(2, 2700),)
    )
    assert sight_of(limited, own_percent=75.0).limit_path != OWN_BUDGET


def test_kv_that_several_processes_map_is_counted_once() -> None:
    reading = MemoryReading(memory=memory(), service=process(1, 100, 40), engines=(process(2, 300, 50),))
    assert sight_of(reading).own_bytes == 450 * MB


def test_kv_that_the_next_engine_has_not_touched_yet_is_held_all_the_same() -> None:
    reading = MemoryReading(memory=memory(), service=process(1, 100, 2), engines=(process(2, 300, 1),))
    assert sight_of(reading, kv_bytes=200 * MB).own_bytes == 600 * MB


def test_what_nobody_tells_is_unknown_and_not_zero() -> None:
    sight = sight_of(MemoryReading(memory=memory(total_mb=0, available_mb=0)))
    assert (sight.percent, sight.own_bytes, sight.stall_percent, sight.engine) == (None, None, None, None)


def test_stalls_are_those_of_the_group_where_it_tells_them() -> None:
    stalls = (
        MemoryStall(path="/g", some_percent=50, full_percent=20),
        MemoryStall(path="/proc", some_percent=1, full_percent=0),
    )
    assert sight_of(MemoryReading(memory=memory(), stalls=stalls)).stall_percent == 20
