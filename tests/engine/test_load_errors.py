from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from magnitude.engine.sessions import open_session
from magnitude.errors import ModelError


def write_graph(
    path: Path, *, ir_version: int = 9, opset: int = 17, op: str = "Relu", domain: str = "", external: bool = False
) -> None:
    float_row = [1, 1000]
    weight = numpy_helper.from_array(np.ones(float_row, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["h"], domain=domain), helper.make_node("Add", ["h", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, float_row)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, float_row)],
        [weight],
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    if external:
        location = path.name + ".data"
        onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=0)
    else:
        path.write_bytes(model.SerializeToString())


def newer_ir(path: Path) -> None:
    write_graph(path, ir_version=99)


def newer_opset(path: Path) -> None:
    write_graph(path, opset=99)


def first_bytes(path: Path) -> None:
    write_graph(path)
    path.write_bytes(path.read_bytes()[:3000])


def lfs_pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", encoding="ascii")


def empty(path: Path) -> None:
    path.touch()


def missing(path: Path) -> None:
    pass


def unknown_operator(path: Path) -> None:
    write_graph(path, op="Wat", domain="example.ops")


def missing_weights(path: Path) -> None:
    write_graph(path, external=True)
    path.with_name(path.name + ".data").unlink()


def short_weights(path: Path) -> None:
    write_graph(path, external=True)
    os.truncate(path.with_name(path.name + ".data"), 100)


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("write", "code", "words"),
    [
        (newer_ir, "model_too_new", "IR version 99"),
        (newer_opset, "model_too_new", "operator set 99"),
        (first_bytes, "model_file_torn", "cut off"),
        (lfs_pointer, "model_file_torn", "Git LFS pointer"),
        (empty, "model_file_torn", "is empty"),
        (missing, "model_file_missing", "does not exist"),
        (unknown_operator, "model_operator_unknown", "example.ops:Wat"),
        (missing_weights, "model_file_missing", ".data"),
        (short_weights, "model_file_torn", "cut off"),
        (a_folder, "model_file_unreadable", "directory"),
    ],
)
def test_a_model_that_does_not_load_says_in_one_line_which_file_why_and_what_next(
    tmp_path: Path, write: Callable[[Path], None], code: str, words: str
):
    path = tmp_path / "model.onnx"
    write(path)
    with pytest.raises(ModelError) as caught:
        open_session(path, 1)
    error = caught.value
    assert error.code == code
    assert error.permanent
    assert error.param == str(path)
    assert str(path) in error.message
    assert words.lower() in error.message.lower()
    assert error.hint
    assert "\n" not in str(error)


def test_a_good_graph_loads_and_leaves_nothing_beside_it(tmp_path: Path):
    write_graph(tmp_path / "model.onnx")
    open_session(tmp_path / "model.onnx", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
