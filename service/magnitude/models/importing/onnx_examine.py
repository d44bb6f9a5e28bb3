"""Looking at an ONNX graph that others made, before ONNX Runtime loads it. Runs in the confined import child.

The graph is read without its external data. What is wrong is said in one line that names the file, the cause and
the next step; operators that cannot run are listed one by one, where ONNX Runtime names only the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from magnitude.errors import ImportFailed
from magnitude.models.onnx_signature import Signature, read_signature
from magnitude.models.untrusted import GRAPH_MAX_BYTES, inside

# A graph names its weights' files: one, or a few shards.
_MOST_DATA_FILES = 1000
_SHOWN_OPERATORS = 20


class Examined:
    """A graph that could be read: its signature, its operators, and the data files beside it."""

    def __init__(self, path: Path, model: Any, signature: Signature, data_files: list[Path]) -> None:
        self.path = path
        self.signature = signature
        self.data_files = data_files
        self._model = model

    def operators(self) -> set[tuple[str, str]]:
        """(domain, operator) of every node, those inside branches and loops included."""
        local = {(function.domain, function.name) for function in self._model.functions}
        graphs = [self._model.graph, *self._model.functions]
        found: set[tuple[str, str]] = set()
        while graphs:
            for node in graphs.pop().node:
                found.add(("" if node.domain == "ai.onnx" else node.domain, node.op_type))
                for attribute in node.attribute:
                    graphs += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
        return found - local

    def accuracy_level(self) -> int | None:
        """The accuracy level of the graph's MatMulNBits, where it has any."""
        for node in self._model.graph.node:
            if node.op_type == "MatMulNBits":
                levels = [attribute.i for attribute in node.attribute if attribute.name == "accuracy_level"]
                return int(levels[0]) if levels else 0
        return None


def examine(path: Path) -> Examined:
    """Read the graph at `path`. Raises `ImportFailed` or `ModelError`."""
    signature = read_signature(path)
    if path.stat().st_size > GRAPH_MAX_BYTES:
        raise ImportFailed(
            f"{path.name}: the graph has {path.stat().st_size} bytes, protobuf's limit is {GRAPH_MAX_BYTES}",
            hint="Export it with external data",
            param=str(path),
        )
    _check_versions(path, signature)
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's errors have no common base but Exception
        raise ImportFailed(
            f"{path.name}: this is not a whole ONNX graph ({' '.join(str(error).split())[:200]})",
            hint="The file is cut off or damaged; check its sha256 or fetch it again",
            param=str(path),
        ) from error
    return Examined(path, model, signature, _data_files(path, model))


def missing_operators(examined: Examined) -> list[str]:
    """Operators for which ONNX Runtime here has no CPU kernel and that are not made of others, by name."""
    kernels = {(kernel.domain, kernel.op_name) for kernel in ort_state.get_all_opkernel_def()}
    missing = sorted(examined.operators() - kernels)
    return [f"{domain or 'ai.onnx'}:{name}" for domain, name in missing if not _is_function(domain, name)]


def explain_load_failure(examined: Examined, error: ImportFailed) -> ImportFailed:
    """A better error for a graph that ONNX Runtime refused, where the operators are the cause."""
    missing = missing_operators(examined)
    if not missing:
        return error
    shown = ", ".join(missing[:_SHOWN_OPERATORS])
    more = f" and {len(missing) - _SHOWN_OPERATORS} more" if len(missing) > _SHOWN_OPERATORS else ""
    return ImportFailed(
        f"{examined.path.name}: ONNX Runtime {onnxruntime.__version__} cannot run {shown}{more} on a CPU",
        hint="Export the model without these operators, or for the CPU",
        param=str(examined.path),
    )


def _is_function(domain: str, name: str) -> bool:
    """Whether the ONNX standard defines the operator in terms of others, which ONNX Runtime then uses."""
    if domain not in ("", "ai.onnx", "ai.onnx.ml"):
        return False
    try:
        schema = onnx.defs.get_schema(name, domain="" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _check_versions(path: Path, signature: Signature) -> None:
    newest_ir = int(onnx.IR_VERSION)
    if not 1 <= signature.ir_version <= newest_ir:
        raise ImportFailed(
            f"{path.name}: IR version {signature.ir_version}; up to {newest_ir} can be read",
            hint="Update onnxruntime and onnx, or export the model for an older IR version",
            param=str(path),
        )
    newest: dict[str, int] = {}
    for schema in ort_state.get_all_operator_schema():
        newest[schema.domain] = max(newest.get(schema.domain, 0), schema.since_version)
    # The standard's own opset may be newer than any operator that changed in it.
    newest[""] = max(newest.get("", 0), int(onnx.defs.onnx_opset_version()))
    for domain, version in signature.opsets.items():
        known = newest.get("" if domain == "ai.onnx" else domain)
        if known is not None and version > known:
            raise ImportFailed(
                f"{path.name}: opset {version} of {domain or 'ai.onnx'}; ONNX Runtime {onnxruntime.__version__} "
                f"knows up to {known}",
                hint=f"Update onnxruntime, or export the model with opset {known} or older",
                param=str(path),
            )


def _data_files(path: Path, model: Any) -> list[Path]:
    """Files that hold the graph's weights. Raises for one that is outside the graph's folder, or not there."""
    names: dict[str, None] = {}
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            locations = [entry.value for entry in tensor.external_data if entry.key == "location"]
            names[locations[0] if locations else ""] = None
    if len(names) > _MOST_DATA_FILES:
        raise ImportFailed(f"{path.name}: {len(names)} data files", hint="Export it with one data file")
    found = []
    for name in names:
        data = inside(path.parent, name, what=path.name)
        if not data.is_file():
            raise ImportFailed(
                f"{data}: the graph's weights are missing", hint="Put the file beside the graph", param=str(data)
            )
        found.append(data)
    return found


def _tensors(model: Any) -> list[Any]:
    """Every tensor that may be external: weights, and constants in attributes, branches and functions."""
    found: list[Any] = []
    graphs = [model.graph, *model.functions]
    while graphs:
        graph = graphs.pop()
        found += list(getattr(graph, "initializer", ()))
        for node in graph.node:
            for attribute in node.attribute:
                found += [attribute.t, *attribute.tensors]
                graphs += [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
    return found
