"""Is the library of kernels there, does it suit this service and this CPU, and which models can use it?

It is tried in a child process, as ONNX Runtime is: a library that does not suit the machine may end it.
"""

from __future__ import annotations

import json
import subprocess

import msgspec

from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding
from magnitude.kernels.locate import VARIABLE

LOAD_S = 60.0  # importing NumPy and a library of 170 KB from a slow card, with a wide margin

PROGRAM = """
import json
from magnitude.errors import MagnitudeError
from magnitude.kernels.library import VERSION, Kernels
try:
    library = Kernels().library()
    said = {"path": str(library.path), "version": VERSION, "instruction_set": library.instruction_set}
except MagnitudeError as error:
    said = {"missing": error.message}
print(json.dumps(said))
"""

_LOST = (
    "Decoders can run on ONNX Runtime's own operators alone. What kernels gain is in docs/performance.md (Kernels): "
    "faster answers and prompts, threads that can change at each step, less memory."
)
_UNUSED = "Not used: engine.graph is serving. With engine.graph: kernels, decoders are loaded by their kernel plans"
_FIX = (
    "Install a package or wheel that has them; from a checkout: a C++ compiler and scripts/onnxruntime-headers, then "
    "install again (README)"
)


def check(context: DoctorContext) -> Finding:
    try:
        child = subprocess.run(
            [context.python, "-c", PROGRAM], capture_output=True, text=True, timeout=LOAD_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _lost(f"The library of kernels did not load within {LOAD_S:.0f} s", "Look at the storage")
    except OSError as error:
        return _lost(f"{context.python} cannot be started", str(error))
    found = judge(child.returncode, child.stdout, child.stderr, without_plan(context))
    if found.level == "ok" and context.settings.engine.graph == "serving":
        return msgspec.structs.replace(found, detail=f"{found.detail}\n{_UNUSED}".strip())
    return found


def without_plan(context: DoctorContext) -> tuple[str, ...]:
    """Names of decoders that have no kernel plan which could be used."""
    from magnitude.models.catalogue import BrokenModel, scan

    entries = [entry for entry in scan(context.models_folder) if not isinstance(entry, BrokenModel)]
    return tuple(entry.name for entry in entries if entry.kind == "decoder" and not entry.kernel_graphs)


def judge(status: int, output: str, errors: str, without: tuple[str, ...] = ()) -> Finding:
    """What the child's end means; `without`: models that have no kernel plan."""
    last = (errors.strip().splitlines() or [""])[-1]
    if status:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return _lost(f"The library of kernels ended the process that loaded it, {how}", last)
    try:
        said = json.loads(output.strip().splitlines()[-1])
        missing = said.get("missing", "")
        version, used, path = said.get("version"), said.get("instruction_set"), said.get("path", "")
    except (ValueError, IndexError, AttributeError):
        return _lost("The library of kernels answered something unexpected", output[:200])
    if missing:
        # Whoever has emptied the variable knows.
        asked = f"{VARIABLE} is empty" in missing
        return Finding(
            level="ok" if asked else "notice",
            title="Kernels are switched off" if asked else "There are no kernels",
            detail=f"{missing}.\n{_LOST}",
            advice="" if asked else _FIX,
        )
    title = f"Kernels of version {version}, on {used}"
    if without:
        return Finding(
            level="notice",
            title=f"{title}; {len(without)} decoders have no kernel plan",
            detail=f"{path}\n{', '.join(without)}",
            advice="Import them again where there are kernels; docs/models.md says which models cannot have one",
        )
    return Finding(level="ok", title=title, detail=path)


def _lost(title: str, detail: str) -> Finding:
    return Finding(level="warning", title=title, detail=f"{detail}\n{_LOST}".strip(), advice=_FIX)
