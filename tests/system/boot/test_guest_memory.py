"""Memory limits that hold: the kernel of a guest has the controller that a container is not given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from guest import Guest
from guest_session import CLIENT, READY_S, Answer, Guests

pytestmark = pytest.mark.system

HERE = Path(__file__).resolve().parent
GROUP = "/sys/fs/cgroup/system.slice/magnitude.service"
UNIT = "systemctl show --property=MainPID,NRestarts --value magnitude"
TOKENS = 200
# As much again as the service and its engines take together.
BALLAST_MB = 200
# The watchdog's half minute and what systemd leaves for the last words, ten times.
REPLACED_S = 400.0


def state_of(guest: Guest) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(guest.check(f"{CLIENT} get /v1/magnitude/state"))
    return state


def events_of(guest: Guest, group: str) -> dict[str, int]:
    lines = guest.check(f"cat {group}/memory.events").splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def start_bomb(guest: Guest, pid: int, most_mb: int | None = None) -> None:
    """Let something eat in the engine's group while the process lives."""
    most = "" if most_mb is None else str(most_mb << 20)
    guest.check(
        f"systemd-run --unit=bomb --quiet python3 /opt/test/memory_bomb.py {GROUP}/engine {pid} {most}",
        files={"/opt/test/memory_bomb.py": (HERE / "memory_bomb.py").read_bytes()},
    )


def test_a_memory_bomb_beside_the_engine_costs_the_engine_and_no_word_of_an_answer(serving: Guest) -> None:
    answers = [Answer(serving, TOKENS).whole()]
    unit, before = serving.check(UNIT), state_of(serving)
    engine = before["health"]["engine_pid"]
    assert str(engine) in serving.check(f"cat {GROUP}/engine/cgroup.procs").split()

    start_bomb(serving, engine)
    while serving.run(f"test -e /proc/{engine}").status == 0:
        answers.append(Answer(serving, TOKENS).whole())
    serving.until("! systemctl is-active --quiet bomb")
    answers.append(Answer(serving, TOKENS).whole())
    assert [(answer["error"], answer["finish"]) for answer in answers] == [(None, "length")] * len(answers)
    assert {answer["text"] for answer in answers} == {answers[0]["text"]}

    assert serving.check(UNIT) == unit  # the service itself was not touched
    assert events_of(serving, f"{GROUP}/engine")["oom_kill"] >= 1
    assert events_of(serving, f"{GROUP}/service")["oom_kill"] == 0
    after = state_of(serving)
    assert after["health"]["engine_pid"] not in (None, engine)
    memory = after["memory"]
    assert memory["oom_kills"] >= 1
    assert {"trim", "shrink_kv"} <= memory["steps"].keys()  # it had tried to make room before
    assert serving.check("ls /var/lib/magnitude/failures").split()[0].endswith("-oom.json")


def test_a_service_that_is_throttled_for_ever_is_replaced_by_one_that_answers(serving: Guest) -> None:
    undisturbed = Answer(serving, TOKENS).whole()
    service = serving.check(UNIT).split()[0]
    # Something in the unit takes what a new service needs most of, and lives as long as this one.
    start_bomb(serving, int(service), most_mb=BALLAST_MB)
    serving.until(f"test $(cat {GROUP}/engine/memory.current) -gt {BALLAST_MB << 20}")
    used_bytes = int(serving.check(f"cat {GROUP}/memory.current"))
    high_bytes = used_bytes - (BALLAST_MB << 19)
    serving.check(f"systemctl set-property --runtime magnitude MemoryHigh={high_bytes}")
    serving.check(f"systemd-run --quiet {CLIENT} streams {TOKENS} /run/answers")

    serving.until(f"test $(systemctl show --property=MainPID --value magnitude) != {service}", timeout_s=REPLACED_S)
    serving.until("systemctl is-active --quiet magnitude", timeout_s=READY_S)
    assert int(serving.check("systemctl show --property=MemoryHigh --value magnitude")) <= high_bytes
    answer = Answer(serving, TOKENS).whole()
    assert (answer["text"], answer["finish"]) == (undisturbed["text"], "length")


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
