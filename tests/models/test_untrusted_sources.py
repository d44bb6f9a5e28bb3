"""Damaged and hostile model files give one clear error each, and nothing outside the folder is read."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude.errors import ImportFailed
from magnitude.models.graphs.build import build_graph
from magnitude.models.sources import open_source

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 144811008\n"


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "m.gguf", Kind.Q4_0).read_bytes()


@pytest.fixture
def model(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "llama_tied", tmp_path / "model"))


def refused(path: Path) -> ImportFailed:
    with pytest.raises(ImportFailed) as caught:
        open_source(path)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


def edit_config(folder: Path, **values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


# --- GGUF ---


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_gguf_file_cut_anywhere_is_refused(gguf_bytes: bytes, tmp_path: Path, cut: float) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_bytes[: int(cut * len(gguf_bytes))])
    refused(path)


@given(at=st.integers(0, 1800), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_header_byte_is_refused_or_harmless(gguf_bytes: bytes, tmp_path: Path, at: int, value: int) -> None:
    path = tmp_path / "changed.gguf"
    path.write_bytes(gguf_bytes[:at] + bytes([value]) + gguf_bytes[at + 1 :])
    try:
        source = open_source(path)
        for name in source.tensor_names():
            source.shape(name)
    except ImportFailed as error:
        assert error.hint


@pytest.mark.parametrize("at", [8, 16])
def test_forged_counts_are_refused_at_once(gguf_bytes: bytes, tmp_path: Path, at: int) -> None:
    path = tmp_path / "forged.gguf"
    path.write_bytes(gguf_bytes[:at] + struct.pack("<Q", 2**60) + gguf_bytes[at + 8 :])
    assert "claims" in refused(path).message


def test_an_lfs_pointer_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(LFS)
    error = refused(path)
    assert "Git LFS pointer" in error.message
    assert "git lfs pull" in error.hint


def test_something_else_than_gguf_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\3\4" + bytes(100))
    assert "not a GGUF file" in refused(path).message


def test_all_missing_tensors_are_listed(tmp_path: Path) -> None:
    source = open_source(tiny_gguf.write(tmp_path / "m.gguf", Kind.F32))
    source._tensors.pop("model.norm.weight")  # type: ignore[attr-defined]
    source._tensors.pop("model.layers.0.mlp.up_proj.weight")  # type: ignore[attr-defined]
    with pytest.raises(
        ImportFailed, match=r"model\.norm\.weight is missing; model\.layers\.0\.mlp\.up_proj\.weight is missing"
    ):
        build_graph(source, tmp_path, bits=16)


def test_an_unknown_architecture_is_named_with_those_that_are_known(gguf_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    written = struct.pack("<Q", 5) + b"llama"
    assert gguf_bytes.count(written) == 1
    path.write_bytes(gguf_bytes.replace(written, struct.pack("<Q", 5) + b"mamba"))
    error = refused(path)
    assert "'mamba'" in error.message
    assert "llama, qwen2, qwen3" in error.hint


def test_unsupported_rope_scaling_is_named(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", Kind.F32, fields={"llama.rope.scaling.type": "yarn"})
    assert "'yarn'" in refused(path).message


# --- Hugging Face folders ---


def test_settings_that_cannot_be_expressed_are_all_listed(model: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0}
    error = refused(edit_config(model, hidden_act="gelu", mlp_bias=True, rope_parameters=rope))
    for part in ("'gelu'", "biases in the MLP", "'longrope'"):
        assert part in error.message


def test_a_cut_safetensors_file_is_refused(model: Path) -> None:
    path = model / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "cut off" in refused(model).message


def test_an_lfs_pointer_in_a_folder_says_what_it_is(model: Path) -> None:
    (model / "model.safetensors").write_bytes(LFS)
    assert "Git LFS pointer" in refused(model).message


def test_a_header_longer_than_its_file_is_refused(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + path.read_bytes()[8:])
    assert "claims" in refused(model).message


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/hostname", "a/../../outside.safetensors"])
def test_an_index_that_points_out_of_the_folder_is_refused(model: Path, name: str) -> None:
    shutil.copy(model / "model.safetensors", model.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "names the file" in refused(model).message


def test_a_link_out_of_the_folder_is_refused(model: Path) -> None:
    outside = model.parent / "outside.safetensors"
    (model / "model.safetensors").rename(outside)
    (model / "model.safetensors").symlink_to(outside)
    assert "link that leads out" in refused(model).message


def test_a_sharded_folder_reads_like_a_single_file(model: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    source = open_source(model)
    names = sorted(source.tensor_names())
    floats = {name: np.ascontiguousarray(source.floats(name)) for name in names}
    (model / "model.safetensors").unlink()
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: floats[name] for name in members}, model / file)
    table = {name: file for file, members in shards.items() for name in members}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    again = open_source(model)
    assert again.tensor_names() == source.tensor_names()
    for name in names:
        np.testing.assert_array_equal(again.floats(name), floats[name])


def test_pickled_weights_are_refused_with_the_reason(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "can run code" in refused(model).hint


def test_a_wrong_shape_is_named_with_the_right_one(model: Path, tmp_path: Path) -> None:
    source = open_source(edit_config(model, intermediate_size=64))
    with pytest.raises(ImportFailed, match=r"mlp\.gate_proj\.weight has the shape \[32, 32\], not \[64, 32\]"):
        build_graph(source, tmp_path, bits=16)


def test_a_tensor_that_the_graph_would_leave_out_is_refused(golden: Path, model: Path, tmp_path: Path) -> None:
    # Qwen2's biases under Llama's name: leaving them out would give a model that talks nonsense.
    shutil.copy(golden / "qwen2" / "model.safetensors", model / "model.safetensors")
    with pytest.raises(ImportFailed, match=r"q_proj\.bias has no place"):
        build_graph(open_source(model), tmp_path, bits=16)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "32"), ("num_hidden_layers", -1), ("num_hidden_layers", 10**9), ("rms_norm_eps", 0)],
)
def test_a_nonsensical_setting_is_named(model: Path, key: str, value: object) -> None:
    assert key in refused(edit_config(model, **{key: value})).message
