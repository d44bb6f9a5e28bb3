"""Builds of the kernels for tests: for this machine, for aarch64 under an emulator, with sanitizers.

They lie in MAGNITUDE_HOME and are brought up to date by each run, so that only the first one compiles everything.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = CHECKOUT / "kernels"
CROSS_COMPILER = "aarch64-linux-gnu-g++"


@dataclass(frozen=True)
class Build:
    """A built tree, and how its driver is started."""

    folder: Path
    prefix: tuple[str, ...] = ()

    @property
    def library(self) -> Path:
        return self.folder / "libmagnitude_kernels.so"

    @property
    def driver_command(self) -> list[str]:
        return [*self.prefix, str(self.folder / "kernels_driver")]


def why_no_build() -> str | None:
    """What this machine lacks for building the kernels, as a sentence; none when it lacks nothing."""
    for tool, package in (("cmake", "cmake"), ("make", "make"), ("g++", "g++")):
        if shutil.which(tool) is None:
            return f"{tool} is missing (package {package}; scripts/system-test-setup installs it)"
    return None


def why_no_arm_build() -> str | None:
    if reason := why_no_build():
        return reason
    if not native_arm() and shutil.which(CROSS_COMPILER) is None:
        return f"{CROSS_COMPILER} is missing (package g++-aarch64-linux-gnu; scripts/system-test-setup installs it)"
    return why_no_emulator("aarch64")


def why_no_emulator(machine: str) -> str | None:
    """The same for running programs of "aarch64" or "x86_64"."""
    if emulator(machine) is None:
        return f"qemu-{machine}-static is missing (package qemu-user-static; scripts/system-test-setup installs it)"
    return None


def native_arm() -> bool:
    return platform.machine() == "aarch64"


def emulator(machine: str) -> str | None:
    names = (f"qemu-{machine}-static", f"qemu-{machine}")
    return next((path for name in names if (path := shutil.which(name))), None)


@cache
def onnxruntime_headers() -> Path | None:
    """The folder with ONNX Runtime's C headers: the system's, or what the script has fetched once; none without."""
    for system in ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime"):
        if (Path(system) / "onnxruntime_c_api.h").is_file():
            return Path(system)
    folder = _builds() / "onnxruntime-headers"
    script = CHECKOUT / "scripts" / "onnxruntime-headers"
    done = subprocess.run([str(script), str(folder)], capture_output=True, check=False)
    return folder if done.returncode == 0 else None


def build(variant: str, *options: str, target: str = "all") -> Path:
    """The up-to-date build folder of one variant: `options` are CMake's (-D…)."""
    # Several checkouts can share the home folder.
    checkout = hashlib.sha256(str(SOURCES).encode()).hexdigest()[:8]
    folder = _builds() / f"{variant}-{checkout}"
    _run(["cmake", "-S", str(SOURCES), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", *options])
    _run(["cmake", "--build", str(folder), "--target", target, "--parallel", str(os.cpu_count() or 1)])
    return folder


def build_here(*options: str) -> Build:
    return Build(build("here", "-DBUILD_DRIVER=ON", *options))


def build_arm(*options: str) -> Build:
    """The driver for aarch64, linked statically: an emulator needs no libraries of that machine then."""
    cross = [
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={CROSS_COMPILER}",
    ]
    return Build(
        build(
            "-".join(["aarch64", *(option.removeprefix("-D").replace("=", "-") for option in options)]),
            *("-DBUILD_DRIVER=ON", "-DCMAKE_EXE_LINKER_FLAGS=-static", *options),
            *([] if native_arm() else cross),
            target="kernels_driver",
        )
    )


def on_processor(built: Build, processor: str, machine: str = "aarch64") -> Build:
    """The same build on an emulated processor, by QEMU's name for it; on a machine of that kind as well."""
    found = emulator(machine)
    assert found is not None
    return Build(built.folder, (found, "-cpu", processor))


def build_sanitized(sanitizers: str) -> Build:
    """The driver with sanitizers that end it at the first finding. Little optimised: it compiles in half the time."""
    variant = "sanitized-" + sanitizers.replace(",", "-")
    options = ("-DBUILD_DRIVER=ON", f"-DSANITIZE={sanitizers}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1")
    return Build(build(variant, *options, target="kernels_driver"))


def _builds() -> Path:
    return Path(os.environ.get("MAGNITUDE_HOME") or CHECKOUT / ".magnitude") / "kernel-builds"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
