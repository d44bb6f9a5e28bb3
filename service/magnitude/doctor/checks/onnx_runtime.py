"""Does ONNX Runtime load on this CPU, and which version and providers are there?

It is tried in a child process: a package built for a newer CPU ends the process that imports it.
"""

from __future__ import annotations

import json
import signal
import subprocess

from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

# The first release whose GroupQueryAttention takes an INT8 KV cache, which imported models may use.
NEEDED = (1, 32)
IMPORT_S = 120.0  # reading 20 MB of library from a slow card, with a wide margin

PROGRAM = """
import json, onnxruntime
print(json.dumps({"version": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}))
"""


def check(context: DoctorContext) -> Finding:
    try:
        child = subprocess.run(
            [context.python, "-c", PROGRAM], capture_output=True, text=True, timeout=IMPORT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(
            level="error",
            title=f"ONNX Runtime did not load within {IMPORT_S:.0f} s",
            advice="Look at the storage: a failing card reads very slowly",
        )
    except OSError as error:
        return Finding(level="error", title=f"{context.python} cannot be started", detail=str(error))
    return judge(child.returncode, child.stdout, child.stderr)


def judge(status: int, output: str, errors: str) -> Finding:
    """What the child's end means. A negative `status` is the signal that ended it."""
    last = errors.strip().splitlines()[-1:] or [""]
    if status == -signal.SIGILL:
        return Finding(
            level="error",
            title="ONNX Runtime's wheel is not for this CPU: it ended with an illegal instruction",
            advice="Install the wheel for this architecture (or an older release), in a fresh virtual environment",
        )
    if status < 0:
        name = signal.Signals(-status).name if -status in list(signal.Signals) else str(-status)
        return Finding(
            level="error",
            title=f"ONNX Runtime could not be loaded: the child was ended by {name}",
            detail=last[0],
            advice="A preloaded allocator or library is a usual cause: look at LD_PRELOAD",
        )
    if status != 0:
        missing = "No module named 'onnxruntime'" in errors
        return Finding(
            level="error",
            title="ONNX Runtime is not installed" if missing else "ONNX Runtime could not be imported",
            detail=last[0],
            advice="Install the package again in a fresh virtual environment (in a checkout: scripts/run)",
        )
    try:
        said = json.loads(output.strip().splitlines()[-1])
        version, providers = str(said["version"]), [str(name) for name in said["providers"]]
        number = tuple(int(part) for part in version.split(".")[:2])
    except (ValueError, KeyError, IndexError, TypeError):
        return Finding(level="warning", title="ONNX Runtime answered something unexpected", detail=output[:200])
    detail = f"providers: {', '.join(providers)}"
    if number < NEEDED:
        needed = ".".join(map(str, NEEDED))
        return Finding(
            level="error",
            title=f"ONNX Runtime {version} is too old, {needed} is needed",
            detail=detail,
            advice=f"pip install 'onnxruntime>={needed}'",
        )
    return Finding(level="ok", title=f"ONNX Runtime {version}", detail=detail)
