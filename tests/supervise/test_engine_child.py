import asyncio
import contextlib
import os
import sys

from magnitude.supervise.engine_process import EngineProcess, child_environment, describe_exit


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def exit_reason(code: str, *, end: str = "") -> str:
    exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    process = await EngineProcess.spawn(exited.set_result, command=python(code))
    if end == "kill":
        process.kill()
    return await asyncio.wait_for(exited, 20)


def test_variables_that_systemd_meant_for_the_service_do_not_reach_the_engine() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1", "PATH": "/bin"}
    assert child_environment(environ) == {"PATH": "/bin"}


def test_the_way_of_an_exit_is_told_in_words() -> None:
    assert asyncio.run(exit_reason("raise SystemExit(3)")) == "the engine left with status 3"
    assert "SIGKILL" in asyncio.run(exit_reason("import time; time.sleep(60)", end="kill"))
    assert "does not fit this CPU" in asyncio.run(
        exit_reason("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    )
    assert describe_exit(-99) == "the engine was ended by signal 99"


def test_an_engine_that_ignores_the_request_to_leave_is_killed() -> None:
    async def scenario() -> str:
        exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        process = await EngineProcess.spawn(exited.set_result, command=python("import time; time.sleep(60)"))
        await process.ended()
        return await exited

    assert "SIGKILL" in asyncio.run(scenario())


def test_a_flood_of_long_log_lines_does_not_stop_the_exit_from_being_seen() -> None:
    code = "import sys; [sys.stderr.write('x' * 100000 + chr(10)) for _ in range(20)]; raise SystemExit(4)"
    assert asyncio.run(exit_reason(code)) == "the engine left with status 4"


def test_a_kill_of_a_process_that_has_just_ended_does_not_hide_how_it_ended() -> None:
    async def scenario() -> str:
        exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        process = await EngineProcess.spawn(exited.set_result, command=python("raise SystemExit(5)"))
        with contextlib.suppress(ChildProcessError):  # the child watcher was faster
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.kill()
        return await asyncio.wait_for(exited, 20)

    for _ in range(5):
        assert asyncio.run(scenario()) == "the engine left with status 5"
