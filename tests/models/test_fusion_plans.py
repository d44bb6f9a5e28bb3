"""Fusion plans: other graphs over the same data file that compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from gguf import GGMLQuantizationType as Kind
from tiny_gguf import VOCAB, write
from tiny_sources import decoder_folder

from magnitude.models.catalogue import open_folder
from magnitude.models.description import DecoderShape
from magnitude.models.graphs.build import build_graph
from magnitude.models.graphs.fusion import FUSION_PLANS, FusionPlan, write_plan
from magnitude.models.graphs.graph import DATA_FILE, SERVING_GRAPH_FILE
from magnitude.models.graphs.linear import Bits
from magnitude.models.importing.fusion_check import add_plans
from magnitude.models.importing.graph_runner import DecoderRunner
from magnitude.models.importing.parent import import_model
from magnitude.models.manifest import read_manifest, write_manifest
from magnitude.models.sources import open_source

TEXTS = [[int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, 24)] for seed in range(3)]
BOTH = FUSION_PLANS[0]


def build(folder: Path, kind: Kind, *, bits: Bits = 4) -> DecoderShape:
    folder.mkdir(exist_ok=True)
    source = open_source(write(folder / "tiny.gguf", kind))
    shape = build_graph(source, folder, bits=bits).decoder
    assert shape is not None
    return shape


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node]


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0], ids=["symmetric", "with minima", "8 bits"])
def test_products_that_are_taken_apart_give_the_bits_of_the_stacked_ones(tmp_path: Path, kind: Kind) -> None:
    shape = build(tmp_path, kind, bits=8 if kind == Kind.Q8_0 else 4)
    kept, notes = add_plans(tmp_path, SERVING_GRAPH_FILE, shape, TEXTS)
    assert [plan.file for plan in kept] == [plan.file for plan in FUSION_PLANS]
    assert all(plan.equal and plan.verified and plan.largest_difference == 0 for plan in kept)
    assert not notes


def test_every_plan_multiplies_by_more_products_than_the_serving_graph(tmp_path: Path) -> None:
    shape = build(tmp_path, Kind.Q4_1)
    stacked = operators(tmp_path / SERVING_GRAPH_FILE).count("MatMulNBits")
    add_plans(tmp_path, SERVING_GRAPH_FILE, shape, TEXTS)
    more = [operators(tmp_path / plan.file).count("MatMulNBits") - stacked for plan in FUSION_PLANS]
    assert more == [3, 1]  # of one layer: q, k, v instead of one product; gate and up instead of one


def test_a_plan_s_weights_are_parts_of_the_serving_graph_s_data(tmp_path: Path) -> None:
    build(tmp_path, Kind.Q4_1)
    before = (tmp_path / DATA_FILE).stat().st_size
    assert write_plan(tmp_path / SERVING_GRAPH_FILE, BOTH, tmp_path / BOTH.file)
    assert (tmp_path / DATA_FILE).stat().st_size == before
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in onnx.load(str(tmp_path / BOTH.file), load_external_data=False).graph.initializer
    ]
    spans = [(int(place["offset"]), int(place["length"])) for place in places if place]
    assert spans
    assert all(start + length <= before for start, length in spans)
    assert {place["location"] for place in places if place} == {DATA_FILE}


def test_a_graph_with_float_weights_has_no_plans(tmp_path: Path) -> None:
    shape = build(tmp_path, Kind.F32, bits=16)
    assert add_plans(tmp_path, SERVING_GRAPH_FILE, shape, TEXTS) == ((), ())
    assert not (tmp_path / BOTH.file).exists()


def test_a_plan_that_computes_something_else_is_not_kept(tmp_path: Path) -> None:
    def swapped(serving: Path, plan: FusionPlan, target: Path) -> bool:
        model = onnx.load(str(serving), load_external_data=False)
        split = next(node for node in model.graph.node if node.op_type == "Split" and "gate" in node.output[0])
        split.output[:] = list(split.output)[::-1]  # up takes gate's place
        target.write_bytes(model.SerializeToString())
        return True

    shape = build(tmp_path, Kind.Q4_0)
    kept, notes = add_plans(tmp_path, SERVING_GRAPH_FILE, shape, TEXTS, write=swapped)
    assert not kept
    assert len(notes) == len(FUSION_PLANS)
    assert "nats" in notes[0]
    assert not (tmp_path / BOTH.file).exists()


def test_biases_are_taken_apart_with_their_products(golden: Path, tmp_path: Path) -> None:
    source = open_source(decoder_folder(golden, tmp_path / "source", "qwen2"))
    shape = build_graph(source, tmp_path, bits=4).decoder
    assert shape is not None
    kept, _ = add_plans(tmp_path, SERVING_GRAPH_FILE, shape, [[1, 5, 9, 2, 7]])
    assert [plan.equal for plan in kept] == [True, True]


def test_a_model_whose_heads_are_normed_one_by_one_has_only_gate_and_up_apart(golden: Path, tmp_path: Path) -> None:
    source = open_source(decoder_folder(golden, tmp_path / "source", "qwen3"))
    shape = build_graph(source, tmp_path, bits=4).decoder
    assert shape is not None
    kept, _ = add_plans(tmp_path, SERVING_GRAPH_FILE, shape, [[1, 5, 9, 2, 7]])
    assert [(plan.file, plan.equal) for plan in kept] == [("separate-mlp.onnx", True)]


def test_an_import_lists_its_plans_and_the_description_names_them(golden: Path, tmp_path: Path) -> None:
    model = import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=tmp_path / "models")
    manifest = read_manifest(tmp_path / "models" / "tiny")
    assert model.graphs == tuple(plan.file for plan in manifest.graphs if not plan.needs) != ()
    assert all(plan.file in manifest.files for plan in manifest.graphs)
    assert model.decoder is not None
    DecoderRunner(tmp_path / "models" / "tiny" / model.graphs[0], model.decoder).logits([1, 2, 3])


def test_a_folder_of_an_older_import_has_no_plans_and_serves_as_before(golden: Path, tmp_path: Path) -> None:
    import msgspec

    model = import_model(decoder_folder(golden, tmp_path / "tiny"), models_folder=tmp_path / "models")
    folder = tmp_path / "models" / "tiny"
    manifest = read_manifest(folder)
    plans = [plan.file for plan in manifest.graphs]
    files = {name: entry for name, entry in manifest.files.items() if name not in plans}
    write_manifest(folder, msgspec.structs.replace(manifest, files=files, graphs=()))
    for name in plans:
        (folder / name).unlink()
    older = open_folder(folder)
    assert older.graphs == ()
    assert older.model_hash == model.model_hash
