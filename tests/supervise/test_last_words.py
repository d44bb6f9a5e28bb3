from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from magnitude.supervise.engine_process import EngineProcess
from magnitude.supervise.last_words import MAX_TASKS, task_stacks

ENDED = """
import os, signal, threading
from magnitude.supervise.engine_process import EngineProcess
from magnitude.supervise.last_words import speak_when_killed
speak_when_killed()
held = threading.Event()

def waits_for_ever():
    held.wait()

threading.Thread(target=waits_for_ever, daemon=True).start()
os.kill(os.getpid(), signal.{number})
"""


@pytest.mark.parametrize("number", ["SIGABRT", "SIGSEGV"])
def test_a_fatal_signal_leaves_the_stacks_of_all_threads_and_still_ends_the_process(number: str) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", sys.executable, "-c", ENDED.replace("{number}", number)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode < 0
    assert "waits_for_ever" in done.stderr
    assert done.stderr.count("most recent call first") == 2


def test_the_tasks_of_a_loop_are_shown_where_they_wait() -> None:
    async def waits_for_an_answer() -> None:
        await asyncio.Event().wait()

    async def look() -> str:
        task = asyncio.create_task(waits_for_an_answer())
        await asyncio.sleep(0)
        stacks = task_stacks(asyncio.get_running_loop())
        task.cancel()
        return stacks

    stacks = asyncio.run(look())
    assert "waits_for_an_answer" in stacks
    assert "await asyncio.Event().wait()" in stacks


def test_a_crowd_of_tasks_does_not_flood_the_log() -> None:
    async def look() -> str:
        tasks = [asyncio.create_task(asyncio.sleep(60)) for _ in range(500)]
        await asyncio.sleep(0)
        stacks = task_stacks(asyncio.get_running_loop())
        for task in tasks:
            task.cancel()
        return stacks

    stacks = asyncio.run(look())
    assert stacks.count("Stack for <Task") == MAX_TASKS
    assert f"and {501 - MAX_TASKS} more tasks" in stacks


def test_what_the_engine_says_as_it_crashes_reaches_the_log_of_the_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def crash() -> None:
        exited: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        process = await EngineProcess.spawn(exited.set_result)
        await asyncio.get_running_loop().sock_recv(nonblocking(process.sock), 1)  # its hello: all is set up
        os.kill(process.pid, signal.SIGSEGV)
        await asyncio.wait_for(exited, 60)
        process.sock.close()

    with caplog.at_level(logging.WARNING, "magnitude.engine"):
        asyncio.run(crash())
    said = [record.getMessage() for record in caplog.records]
    assert any("Segmentation fault" in line for line in said)
    assert any("most recent call first" in line for line in said)
    assert any("engine/__main__.py" in line for line in said)


def nonblocking(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    return sock


def test_an_engine_that_is_given_up_says_where_it_stood(caplog: pytest.LogCaptureFixture) -> None:
    async def hang() -> None:
        exited: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        process = await EngineProcess.spawn(exited.set_result)
        await asyncio.get_running_loop().sock_recv(nonblocking(process.sock), 1)
        process.kill(stacks=True)
        await asyncio.wait_for(exited, 60)
        process.sock.close()

    with caplog.at_level(logging.WARNING, "magnitude.engine"):
        asyncio.run(hang())
    said = [record.getMessage() for record in caplog.records]
    assert any("most recent call first" in line for line in said)
    assert any("engine/__main__.py" in line for line in said)


def test_an_engine_that_is_stopped_is_killed_all_the_same() -> None:
    async def stopped() -> object:
        exited: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        process = await EngineProcess.spawn(exited.set_result)
        await asyncio.get_running_loop().sock_recv(nonblocking(process.sock), 1)
        os.kill(process.pid, signal.SIGSTOP)
        process.kill(stacks=True)
        try:
            return await asyncio.wait_for(exited, 60)
        finally:
            process.sock.close()

    assert "SIGKILL" in str(asyncio.run(stopped()))
