"""Memory limits that hold: the kernel of a guest has the controller that a container is not given."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from guest import Guest
from guest_session import CLIENT, READY_S, Answer, Guests

pytestmark = pytest.mark.system

HERE = Path(__file__).resolve().parent
GROUP = "/sys/fs/cgroup/system.slice/magnitude.service"
UNIT = "systemctl show --property=MainPID,NRestarts --value magnitude"
TOKENS = 400


def state_of(guest: Guest) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(guest.check(f"{CLIENT} get /v1/magnitude/state"))
    return state


def events_of(guest: Guest, group: str) -> dict[str, int]:
    lines = guest.check(f"cat {group}/memory.events").splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def test_a_memory_bomb_beside_the_engine_costs_the_engine_and_no_word_of_an_answer(serving: Guest) -> None:
    undisturbed = Answer(serving, TOKENS).whole()
    unit, before = serving.check(UNIT), state_of(serving)
    engine = before["health"]["engine_pid"]
    assert str(engine) in serving.check(f"cat {GROUP}/engine/cgroup.procs").split()

    serving.check(
        f"systemd-run --unit=bomb --quiet python3 /opt/test/memory_bomb.py {GROUP}/engine {engine}",
        files={"/opt/test/memory_bomb.py": (HERE / "memory_bomb.py").read_bytes()},
    )
    answers = []
    while serving.run(f"test -e /proc/{engine}").status == 0:
        answers.append(Answer(serving, TOKENS).whole())
    print(serving.journal("-u magnitude"))
    serving.until("! systemctl is-active --quiet bomb")
    serving.until(f"{CLIENT} get /readyz", timeout_s=READY_S)
    answers.append(Answer(serving, TOKENS).whole())
    assert {(answer["text"], answer["finish"], answer["error"]) for answer in answers} == {
        (undisturbed["text"], "length", None)
    }

    assert serving.check(UNIT) == unit  # the service itself was not touched
    assert events_of(serving, f"{GROUP}/engine")["oom_kill"] >= 1
    assert events_of(serving, f"{GROUP}/service")["oom_kill"] == 0
    after = state_of(serving)
    assert after["health"]["engine_pid"] not in (None, engine)
    memory = after["memory"]
    assert memory["oom_kills"] >= 1
    assert memory["steps"]  # it had tried to make room before
    print(memory, serving.check("journalctl -u magnitude -o cat --no-pager"))


def test_throttling_for_ever_ends_with_a_service_that_answers(serving: Guest) -> None:
    undisturbed = Answer(serving, TOKENS).whole()
    print(serving.check(f"head {GROUP}/memory.current {GROUP}/*/memory.current; cat {GROUP}/memory.stat"))
    low = int(serving.check(f"cat {GROUP}/memory.current")) // 2
    serving.check(f"systemctl set-property --runtime magnitude MemoryHigh={low}")
    print(time.monotonic())
    for _ in range(6):
        t = time.monotonic()
        print(serving.run(f"timeout 60 {CLIENT} stream 100 | cut -c1-100,500-"), time.monotonic() - t)
        print(serving.run(UNIT), events_of(serving, GROUP))
        print(serving.run(f"timeout 60 {CLIENT} get /v1/magnitude/state | grep -o 'memory\":.*'")[1][:3000])
    print(serving.check("journalctl -u magnitude -o short-monotonic --no-pager"))


def test_without_controller_and_pressure_figures_it_serves_and_says_what_it_lacks(guests: Guests) -> None:
    with guests.restored("without_controller") as guest:
        assert "memory" not in guest.check("cat /sys/fs/cgroup/cgroup.controllers").split()
        assert guest.run("cat /proc/pressure/memory").status
        answer = Answer(guest, TOKENS).whole()
        assert (answer["finish"], answer["error"]) == ("length", None)
        memory = state_of(guest)["memory"]
        assert (memory["memory_limit"], memory["psi"], memory["step"]) == ("none", "unavailable", "normal")
        hints = " ".join(memory["hints"])
        assert "cgroup_enable=memory" in hints
        assert "psi=1" in hints
