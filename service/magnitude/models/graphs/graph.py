"""Write an ONNX graph, its weights straight into an external data file.

A tensor is written when it is added and then forgotten, so that a build never holds more than one of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from magnitude.models.description import WEIGHTS_FILE

GRAPH_FILE = "model.onnx"
SERVING_GRAPH_FILE = "serving.onnx"
DATA_FILE = WEIGHTS_FILE

# Page size of every Arm kernel: with it a map of one tensor starts on a page of its own everywhere.
ALIGN_BYTES = 65536
# Tensors below this stay in the graph: a shape or an index is read at load and not worth a page of its own.
INLINE_BYTES = 1024
# Tensors below this are aligned to a cache line only, so that hundreds of norm weights do not fill a page each.
PAGE_ALIGNED_BYTES = 65536
CACHE_LINE_BYTES = 64

# Opset 21 is ONNX Runtime's of 1.18 and newer, IR version 10 belongs to it: readable by every ONNX Runtime GenAI
# that knows the operators used here.
OPSET = 21
IR_VERSION = 10
CONTRIB = "com.microsoft"

_ELEMENTS: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}

Dimension = int | str


class GraphWriter:
    """Collects nodes and tensors; `save` writes the graph. Use as a context manager, which closes the data file.

    Names of tensors are the caller's and must be unique. Values are named by their producer.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._data = (folder / DATA_FILE).open("wb")
        self._nodes: list[Any] = []
        self._tensors: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self.metadata: dict[str, str] = {}  # what those should know who derive another graph from this one

    def __enter__(self) -> GraphWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()

    def input(self, name: str, dtype: str, shape: Sequence[Dimension]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, _ELEMENTS[dtype], shape))
        return name

    def output(self, name: str, dtype: str, shape: Sequence[Dimension]) -> str:
        self._outputs.append(helper.make_tensor_value_info(name, _ELEMENTS[dtype], shape))
        return name

    def tensor(self, name: str, values: NDArray[Any]) -> str:
        """Add a constant tensor; a large one goes to the data file at once."""
        assert name not in self._tensors, f"tensor {name} is added twice"
        values = np.asarray(values, order="C")
        if values.nbytes < INLINE_BYTES:
            self._tensors[name] = numpy_helper.from_array(values, name)
            return name
        border = ALIGN_BYTES if values.nbytes >= PAGE_ALIGNED_BYTES else CACHE_LINE_BYTES
        offset = -(-self._data.tell() // border) * border
        self._data.write(b"\0" * (offset - self._data.tell()))
        self._data.write(values.data)
        self._tensors[name] = _external(name, values.dtype.name, values.shape, offset, values.nbytes)
        return name

    def constant(self, values: Sequence[int] | int, dtype: str = "int64") -> str:
        """A small integer tensor (a shape, an axis), shared by all who ask for the same one."""
        array = np.array(values, dtype=dtype)
        flat = array.reshape(-1).tolist()
        name = f"const_{dtype}_{array.ndim}d_" + "_".join(str(v).replace("-", "m") for v in flat)
        return name if name in self._tensors else self.tensor(name, array)

    def alias(self, name: str, of: str, shape: Sequence[int]) -> str:
        """A second tensor over the same bytes of the data file as `of`, in another shape."""
        stored = self._tensors[of]
        place = {entry.key: entry.value for entry in stored.external_data}
        if not place:
            return self.tensor(name, numpy_helper.to_array(stored).reshape(shape))
        tensor = _external(name, "uint8", shape, int(place["offset"]), int(place["length"]))
        tensor.data_type = stored.data_type
        self._tensors[name] = tensor
        return name

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: str | Sequence[str],
        *,
        domain: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a node named after its first output, which is returned."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        name = next(n for n in names if n)
        self._nodes.append(helper.make_node(op, list(inputs), names, name=name, domain=domain, **(attributes or {})))
        return name

    def contrib(self, op: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> str:
        """Add a node of ONNX Runtime's own domain."""
        return self.node(op, inputs, outputs, domain=CONTRIB, attributes=attributes)

    def save(self, name: str = GRAPH_FILE) -> None:
        """Write the graph beside the data and flush both to the disk. Raises `OSError` when that fails."""
        graph = helper.make_graph(self._nodes, "magnitude", self._inputs, self._outputs, list(self._tensors.values()))
        model = helper.make_model(
            graph,
            producer_name="magnitude",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)],
        )
        helper.set_model_props(model, self.metadata)
        self._data.flush()
        os.fsync(self._data.fileno())
        write_model(model, self._folder / name)


def read_model(path: Path) -> Any:
    """The graph without its weights."""
    return onnx.load(str(path), load_external_data=False)


def write_model(model: Any, path: Path) -> None:
    """Write a graph and flush it to the disk; its weights are where they were. Raises `OSError`."""
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.flush()
        os.fsync(file.fileno())


def _external(name: str, dtype: str, shape: Sequence[int], offset: int, length: int) -> Any:
    tensor = onnx.TensorProto(name=name, data_type=_ELEMENTS[dtype], dims=list(shape))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", DATA_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
