from __future__ import annotations

from typing import Any

import pytest
from service_under_test import InProcess

X = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3.5, -4]}
FLAG = {"name": "flag", "datatype": "BOOL", "shape": [1], "data": [True]}


@pytest.fixture
def service() -> InProcess:
    return InProcess()


def infer(service: InProcess, *inputs: Any, **more: Any) -> Any:
    return service.post("/v2/models/adder/infer", {"inputs": list(inputs), **more})


def test_tensors_go_in_and_come_out(service: InProcess) -> None:
    body = infer(service, X, FLAG, id="r1").json()
    assert (body["model_name"], body["id"]) == ("adder", "r1")
    y, n = body["outputs"]
    assert y == {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [2.0, 4.0, 7.0, -8.0]}
    assert n == {"name": "n", "datatype": "INT64", "shape": [1], "data": [4]}


def test_nested_data_means_the_same_as_flat(service: InProcess) -> None:
    nested = infer(service, {**X, "data": [[1, 2], [3.5, -4]]}, FLAG).json()
    flat = infer(service, X, FLAG).json()
    assert nested["outputs"] == flat["outputs"]


def test_outputs_can_be_chosen(service: InProcess) -> None:
    body = infer(service, X, FLAG, outputs=[{"name": "n"}]).json()
    assert [o["name"] for o in body["outputs"]] == ["n"]


def test_metadata_shows_the_graphs_own_inputs_and_outputs(service: InProcess) -> None:
    body = service.call("GET", "/v2/models/adder").json()
    assert body["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    assert [o["datatype"] for o in body["outputs"]] == ["FP32", "INT64"]


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ([FLAG], "lacks x"),
        ([], "lacks x, flag"),
        ([X, X, FLAG], "x twice"),
        ([X, {**FLAG, "name": "z"}], "inputs[1].name"),
        ([{**X, "datatype": "FP64"}, FLAG], "takes FP32"),
        ([{**X, "datatype": "BYTES"}, FLAG], "inputs[0].datatype"),
        ([{**X, "shape": [2, 3], "data": [0] * 6}, FLAG], "takes ['any', 2]"),
        ([{**X, "shape": [4]}, FLAG], "inputs[0].shape"),
        ([{**X, "shape": [-2, 2]}, FLAG], "inputs[0].shape"),
        ([{**X, "shape": [10**15, 2]}, FLAG], "inputs[0].shape"),
        ([{**X, "shape": None}, FLAG], "inputs[0].shape is missing"),
        ([{**X, "data": [1, 2, 3]}, FLAG], "holds 3 values"),
        ([{**X, "data": [[1, 2], [3]]}, FLAG], "nesting level 1"),
        ([{**X, "data": [[1, 2, 3, 4]]}, FLAG], "nesting level 0"),
        ([{**X, "data": [1, 2, 3, "4"]}, FLAG], "no FP32"),
        ([{**X, "data": [1, 2, 3, True]}, FLAG], "no FP32"),
        ([{**X, "data": [1, 2, 3, None]}, FLAG], "no FP32"),
        ([{**X, "data": "1234"}, FLAG], "must be a list"),
        ([X, {**FLAG, "data": [1]}], "no BOOL"),
        (["x"], "inputs[0]"),
    ],
)
def test_wrong_tensors_are_refused_in_the_protocols_shape(service: InProcess, inputs: list[Any], word: str) -> None:
    reply = infer(service, *inputs)
    assert reply.status_code == 400
    assert set(reply.json()) == {"error"}
    assert word in reply.json()["error"]
    assert service.inference.inferred == []


def test_numbers_that_do_not_fit_their_type_are_refused(service: InProcess) -> None:
    assert "beyond FP32" not in infer(service, {**X, "data": [1e38, 0, 0, 0]}, FLAG).text
    for big in (10**400, -(10**400)):
        assert infer(service, {**X, "data": [big, 0, 0, 0]}, FLAG).status_code == 400


def test_a_language_model_is_no_plain_tensor_model(service: InProcess) -> None:
    reply = service.post("/v2/models/tiny-chat/infer", {"inputs": []})
    assert reply.status_code == 400
    assert "/v1/chat/completions" in reply.json()["error"]


@pytest.mark.parametrize("path", ["/v2/models/nope", "/v2/models/nope/infer", "/v2/frob"])
def test_errors_below_v2_have_the_protocols_shape(service: InProcess, path: str) -> None:
    reply = service.post(path, {}) if path.endswith("infer") else service.call("GET", path)
    assert reply.status_code == 404
    assert isinstance(reply.json()["error"], str)


def test_health_of_the_server_and_of_a_model(service: InProcess) -> None:
    assert service.call("GET", "/v2").json()["name"] == "magnitude"
    assert service.call("GET", "/v2/health/live").json() == {"live": True}
    assert service.call("GET", "/v2/models/adder/ready").json()["ready"] is True
    service.inference.ready = False
    assert service.call("GET", "/v2/health/ready").status_code == 503
