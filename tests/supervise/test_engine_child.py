import asyncio
import contextlib
import os
import sys

from magnitude.engine.process import EXIT_OUT_OF_MEMORY
from magnitude.supervise.engine_process import LINES_KEPT, EngineProcess, child_environment, loss_of
from magnitude.supervise.loss import EngineLoss


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def loss(code: str, *, end: str = "") -> EngineLoss:
    exited: asyncio.Future[EngineLoss] = asyncio.get_running_loop().create_future()
    process = await EngineProcess.spawn(exited.set_result, command=python(code))
    if end == "kill":
        process.kill()
    return await asyncio.wait_for(exited, 20)


def test_variables_that_systemd_meant_for_the_service_do_not_reach_the_engine() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1", "PATH": "/bin"}
    environ["FDSTORE"] = "64"
    assert child_environment(environ) == {"PATH": "/bin"}


def test_the_way_of_an_exit_is_told_in_words() -> None:
    assert asyncio.run(loss("raise SystemExit(3)")) == EngineLoss("the engine left with status 3", "left")
    killed = asyncio.run(loss("import time; time.sleep(60)", end="kill"))
    assert killed.cause == "killed" and "SIGKILL" in killed.reason
    own_fault = asyncio.run(loss("import os, signal; os.kill(os.getpid(), signal.SIGILL)"))
    assert own_fault.cause == "crash" and "does not fit this CPU" in own_fault.reason
    assert loss_of(-99) == EngineLoss("the engine was ended by signal 99", "killed")


def test_who_ran_out_of_memory_says_so_by_its_status() -> None:
    assert asyncio.run(loss(f"raise SystemExit({EXIT_OUT_OF_MEMORY})")).cause == "oom"


def test_the_last_lines_of_the_log_are_kept() -> None:
    async def scenario() -> list[str]:
        exited: asyncio.Future[EngineLoss] = asyncio.get_running_loop().create_future()
        code = "import sys; [print(n, file=sys.stderr) for n in range(1000)]"
        process = await EngineProcess.spawn(exited.set_result, command=python(code))
        await asyncio.wait_for(exited, 20)
        return list(process.last_lines)

    lines = asyncio.run(scenario())
    assert lines == [str(n) for n in range(1000 - LINES_KEPT, 1000)]


def test_an_engine_that_ignores_the_request_to_leave_is_killed() -> None:
    async def scenario() -> EngineLoss:
        exited: asyncio.Future[EngineLoss] = asyncio.get_running_loop().create_future()
        process = await EngineProcess.spawn(exited.set_result, command=python("import time; time.sleep(60)"))
        await process.ended()
        return await exited

    assert "SIGKILL" in asyncio.run(scenario()).reason


def test_a_flood_of_long_log_lines_does_not_stop_the_exit_from_being_seen() -> None:
    code = "import sys; [sys.stderr.write('x' * 100000 + chr(10)) for _ in range(20)]; raise SystemExit(4)"
    assert asyncio.run(loss(code)).reason == "the engine left with status 4"


def test_a_kill_of_a_process_that_has_just_ended_does_not_hide_how_it_ended() -> None:
    async def scenario() -> EngineLoss:
        exited: asyncio.Future[EngineLoss] = asyncio.get_running_loop().create_future()
        process = await EngineProcess.spawn(exited.set_result, command=python("raise SystemExit(5)"))
        with contextlib.suppress(ChildProcessError):  # the child watcher was faster
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.kill()
        return await asyncio.wait_for(exited, 20)

    for _ in range(5):
        assert asyncio.run(scenario()).reason == "the engine left with status 5"
