import asyncio
import sys

from magnitude.supervise.engine_process import EngineProcess, child_environment, describe_exit


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def exit_reason(code: str, *, end: str = "") -> str:
    exited: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    process = await EngineProcess.spawn(exited.set_result, command=python(code))
    if end == "kill":
        process.kill()
    elif end == "terminate":
        await process.terminate()
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
    stubborn = (
        "import signal, socket, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "socket.socket(fileno=int(sys.argv[2])).send(b'deaf'); time.sleep(60)"
    )

    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        exited: asyncio.Future[str] = loop.create_future()
        process = await EngineProcess.spawn(exited.set_result, command=python(stubborn))
        process.sock.setblocking(False)
        assert await loop.sock_recv(process.sock, 16) == b"deaf"
        await process.terminate()
        return await exited

    assert "SIGKILL" in asyncio.run(scenario())


def test_a_flood_of_long_log_lines_does_not_stop_the_exit_from_being_seen() -> None:
    code = "import sys; [sys.stderr.write('x' * 100000 + chr(10)) for _ in range(20)]; raise SystemExit(4)"
    assert asyncio.run(exit_reason(code)) == "the engine left with status 4"
