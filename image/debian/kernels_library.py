"""The library of kernels for a Debian system of either architecture, compiled here.

Wheels of the checkout are built without it: they are one for all machines, and the library goes beside them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FILE = "libmagnitude_kernels.so"
# Where the service looks for it, below the folder of Python packages.
PLACE = f"magnitude/kernels/{FILE}"
# Tells scikit-build-core not to compile anything.
WITHOUT = "--config-settings=wheel.cmake=false"


def why_no_library(machine: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Why the library cannot be compiled here for `machine` (x86_64 or aarch64), with what to do; "" where it can."""
    # Debian has a package of this name for its own architecture as well.
    package = f"g++-{machine.replace('_', '-')}-linux-gnu"
    packages = {"cmake": "cmake", f"{machine}-linux-gnu-g++": package}
    missing = [program for program in packages if which(program) is None]
    if not missing:
        return ""
    install = " ".join(packages[program] for program in missing)
    return f"the kernels cannot be compiled, {' and '.join(missing)} not found: sudo apt install {install}"


def build_library(machine: str, target: Path, headers: Path, run: Callable[..., object]) -> None:
    """Compile the library for `machine` into the file `target`. `headers` is the folder with ONNX Runtime's C
    headers, fetched where they are not there; `run` runs a command and raises when it fails."""
    run(str(CHECKOUT / "scripts/onnxruntime-headers"), str(headers))
    with tempfile.TemporaryDirectory() as work:
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_COMPILER": f"{machine}-linux-gnu-g++",
            "CMAKE_STRIP": f"{machine}-linux-gnu-strip",
            "CMAKE_SYSTEM_NAME": "Linux",
            "CMAKE_SYSTEM_PROCESSOR": machine,
            "ONNXRUNTIME_INCLUDE_DIR": str(headers),
            "INSTALL_DIR": "lib",
            "CMAKE_INSTALL_PREFIX": f"{work}/installed",
        }
        given = [f"-D{name}={value}" for name, value in options.items()]
        run("cmake", "-S", str(CHECKOUT / "kernels"), "-B", f"{work}/build", *given)
        run("cmake", "--build", f"{work}/build", "--parallel")
        run("cmake", "--install", f"{work}/build", "--strip")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(work) / "installed/lib" / FILE, target)
