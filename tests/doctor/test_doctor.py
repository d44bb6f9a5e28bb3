from __future__ import annotations

import signal
import sys
import types
from pathlib import Path

import pytest

from kernel_trees import write_tree
from magnitude.board import HostRoots
from magnitude.config import EngineSettings, ServerSettings, Settings
from magnitude.doctor import DoctorContext, Finding, exit_status, run_checks
from magnitude.doctor.checks import (
    clock,
    configuration,
    cores,
    cpu_features,
    kernel_options,
    memory,
    onnx_runtime,
    service,
    storage,
)
from magnitude.doctor.running import find_checks
from magnitude.errors import ConfigError
from magnitude.paths import find_paths

C = "sys/devices/system/cpu"
G = "sys/fs/cgroup"


def context(tmp_path: Path, files: dict[str, str | int] | None = None, **fields: object) -> DoctorContext:
    given: dict[str, object] = {
        "settings": Settings(server=ServerSettings(listen="")),
        "paths": find_paths({"MAGNITUDE_HOME": str(tmp_path / "home")}),
        "roots": write_tree(tmp_path, files or {}),
        **fields,
    }
    return DoctorContext(**given)  # type: ignore[arg-type]


def test_every_check_is_found_and_gives_one_finding_with_its_name(tmp_path: Path) -> None:
    names = [name for name, _ in find_checks()]
    findings = run_checks(context(tmp_path))
    assert [finding.check for finding in findings] == names
    assert {"cpu_features", "cores", "memory", "storage", "onnx_runtime", "models", "service", "clock"} <= set(names)


def test_a_check_that_fails_itself_is_reported_and_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "odd_checks").mkdir()
    (tmp_path / "odd_checks/__init__.py").write_text("")
    (tmp_path / "odd_checks/a_broken.py").write_text("def check(context):\n    raise OSError('bus')\n")
    (tmp_path / "odd_checks/b_fine.py").write_text(
        "from magnitude.doctor import Finding\ndef check(context):\n    return Finding(level='ok', title='fine')\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        package: types.ModuleType = __import__("odd_checks")
        broken, fine = run_checks(context(tmp_path), package)
    finally:
        sys.path.remove(str(tmp_path))
    assert (broken.check, broken.level) == ("a_broken", "warning")
    assert "bus" in broken.detail
    assert fine == Finding(check="b_fine", level="ok", title="fine")


@pytest.mark.parametrize(
    ("levels", "status"),
    [([], 0), (["ok", "notice"], 0), (["ok", "warning"], 1), (["warning", "error", "ok"], 2)],
)
def test_the_exit_status_is_that_of_the_worst_finding(levels: list[str], status: int) -> None:
    assert exit_status(Finding(level=level, title="x") for level in levels) == status  # type: ignore[arg-type]


def features(text: str) -> dict[str, str | int]:
    return {"proc/cpuinfo": text}


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "level", "said"),
    [
        ("aarch64", "Features : fp asimd crc32", "warning", "no dot-product"),
        ("aarch64", "Features : asimd asimdhp fphp asimddp", "ok", "no i8mm"),
        ("aarch64", "Features : asimd asimdhp fphp asimddp i8mm", "ok", "has the dot product"),
        ("x86_64", "flags : sse2 avx", "warning", "no AVX2"),
        ("x86_64", "flags : avx avx2", "notice", "no VNNI"),
        ("x86_64", "flags : avx avx2 avx_vnni", "ok", "has VNNI"),
        ("riscv64", "isa : rv64gc", "notice", "unknown"),
    ],
)
def test_missing_instructions_are_named_with_what_they_cost(
    tmp_path: Path, machine: str, cpuinfo: str, level: str, said: str
) -> None:
    finding = cpu_features.check(context(tmp_path, features(cpuinfo), machine=machine))
    assert finding.level == level
    assert said in f"{finding.title}\n{finding.detail}"


def test_more_threads_than_can_run_are_a_warning(tmp_path: Path) -> None:
    settings = Settings(engine=EngineSettings(threads=4))
    finding = cores.check(context(tmp_path, {f"{C}/online": "0-7"}, settings=settings, affinity=(2, 3)))
    assert finding.level == "warning"
    assert "engine.threads is 4" in finding.title


@pytest.mark.parametrize(("limit", "level"), [("50000 100000", "warning"), ("150000 100000", "notice")])
def test_a_cpu_quota_is_named(tmp_path: Path, limit: str, level: str) -> None:
    tree: dict[str, str | int] = {f"{C}/online": "0-3", "proc/self/cgroup": "0::/", f"{G}/cpu.max": limit}
    finding = cores.check(context(tmp_path, tree, affinity=(0, 1, 2, 3)))
    assert finding.level == level
    assert "quota" in finding.title


def test_cores_that_are_kept_away_are_named(tmp_path: Path) -> None:
    finding = cores.check(context(tmp_path, {f"{C}/online": "0-3"}, affinity=(2, 3)))
    assert finding.level == "notice"
    assert "2 of 4" in finding.title
    assert cores.check(context(tmp_path, {f"{C}/online": "0-3"}, affinity=(0, 1, 2, 3))).level == "ok"


def meminfo(available_mib: int) -> dict[str, str | int]:
    return {"proc/meminfo": f"MemTotal: {4096 * 1024} kB\nMemAvailable: {available_mib * 1024} kB"}


@pytest.mark.parametrize(("available_mib", "level"), [(100, "error"), (600, "notice"), (3000, "ok")])
def test_memory_is_judged_by_the_room_left(tmp_path: Path, available_mib: int, level: str) -> None:
    assert memory.check(context(tmp_path, meminfo(available_mib))).level == level


def test_a_group_limit_is_named_with_its_place(tmp_path: Path) -> None:
    tree = {**meminfo(3000), "proc/self/cgroup": "0::/edge.slice", f"{G}/edge.slice/memory.max": 200 << 20}
    finding = memory.check(context(tmp_path, tree))
    assert finding.level == "error"
    assert "control group" in finding.title
    assert "edge.slice" in finding.detail
    assert "MemoryMax" in finding.advice


def test_what_the_kernel_does_not_offer_is_told_with_the_boot_option(tmp_path: Path) -> None:
    tree = {**meminfo(3000), "proc/self/cgroup": "0::/", f"{G}/cgroup.controllers": "cpuset cpu io pids"}
    finding = kernel_options.check(context(tmp_path, tree))
    assert finding.level == "notice"
    assert "cgroup_enable=memory" in finding.advice
    assert "psi=1" in finding.advice


def test_a_kernel_with_everything_switched_on_is_fine(tmp_path: Path) -> None:
    stall = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"
    tree = {
        **meminfo(3000),
        "proc/self/cgroup": "0::/",
        f"{G}/cgroup.controllers": "cpu memory pids",
        "proc/pressure/memory": stall,
    }
    finding = kernel_options.check(context(tmp_path, tree))
    assert finding.level == "ok", finding
    (tmp_path / "proc/pressure/memory").unlink()
    (tmp_path / "proc/pressure/memory").symlink_to("/proc/self/mem")  # opens, and fails to be read
    finding = kernel_options.check(context(tmp_path))
    assert (finding.level, "cgroup_enable" in finding.advice) == ("notice", False)


def test_unknown_memory_is_not_called_too_little(tmp_path: Path) -> None:
    assert memory.check(context(tmp_path)).level == "notice"


def test_storage_is_judged_where_the_state_will_lie(tmp_path: Path) -> None:
    assert str(tmp_path) in storage.check(context(tmp_path)).detail
    full = context(tmp_path, paths=find_paths({"MAGNITUDE_HOME": "/proc/self"}))  # nothing can be written there
    assert storage.check(full).level in ("warning", "error")


def test_onnx_runtime_is_loaded_in_a_child_and_its_version_named(tmp_path: Path) -> None:
    finding = onnx_runtime.check(context(tmp_path))
    assert finding.level == "ok"
    assert "CPUExecutionProvider" in finding.detail


def test_a_child_that_dies_of_an_illegal_instruction_means_the_wrong_wheel(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -ILL $$\n")
    python.chmod(0o755)
    finding = onnx_runtime.check(context(tmp_path, python=str(python)))
    assert finding.level == "error"
    assert "wheel is not for this CPU" in finding.title


@pytest.mark.parametrize(
    ("status", "output", "errors", "said"),
    [
        (-signal.SIGABRT, "", "<jemalloc>: Unsupported system page size", "SIGABRT"),
        (-signal.SIGSEGV, "", "", "SIGSEGV"),
        (1, "", "ModuleNotFoundError: No module named 'onnxruntime'", "not installed"),
        (1, "", "ImportError: libgomp.so.1: cannot open shared object file", "could not be imported"),
        (0, '{"version": "1.20.1", "providers": []}', "", "too old"),
        (0, "something else", "", "unexpected"),
        (0, "", "", "unexpected"),
    ],
)
def test_each_way_to_fail_has_its_own_words(status: int, output: str, errors: str, said: str) -> None:
    finding = onnx_runtime.judge(status, output, errors)
    assert finding.level in ("warning", "error")
    assert said in finding.title


def test_a_python_that_cannot_be_started_is_a_finding(tmp_path: Path) -> None:
    assert onnx_runtime.check(context(tmp_path, python="/nonexistent/python")).level == "error"


def test_a_service_that_does_not_run_is_no_error_but_named(tmp_path: Path) -> None:
    finding = service.check(context(tmp_path))
    assert finding.level == "notice"
    assert "magnitude serve" in finding.advice


def test_a_broken_configuration_is_an_error_with_its_hint(tmp_path: Path) -> None:
    error = ConfigError("x.yaml, line 3: unknown key", hint="Did you mean 'threads'?")
    finding = configuration.check(context(tmp_path, config_error=error))
    assert (finding.level, finding.advice) == ("error", "Did you mean 'threads'?")
    assert "line 3" in finding.detail
    assert configuration.check(context(tmp_path)).level == "ok"
    assert configuration.check(context(tmp_path, notices=("agent: not active",))).level == "notice"


@pytest.mark.parametrize(("wall_s", "level"), [(0.0, "warning"), (12.0, "warning"), (4102444800.0, "ok")])
def test_a_board_that_woke_up_in_the_past_is_noticed(tmp_path: Path, wall_s: float, level: str) -> None:
    assert clock.check(context(tmp_path, wall_clock=lambda: wall_s)).level == level


def test_the_default_roots_are_the_kernels() -> None:
    assert HostRoots().proc == Path("/proc")
