"""Whole imports of tiny adapters: what is read, what is refused and what is left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_sources import decoder_folder

from magnitude.errors import ImportFailed, ModelError, ModelNotFound
from magnitude.models.adapters import (
    AdapterDescription,
    BrokenAdapter,
    kv_hash,
    open_adapter,
    read_adapter_manifest,
    resolve_name,
    scan_adapters,
    split_name,
    usable_adapters,
    verify_adapter,
    with_adapters,
)
from magnitude.models.catalogue import open_folder, scan
from magnitude.models.description import ModelDescription
from magnitude.models.importing.adapter import import_adapter
from magnitude.models.importing.parent import import_model
from magnitude.models.sources import WeightSource, open_source
from tiny_adapters import ALL, random_pairs, write_gguf, write_peft


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    golden = Path(__file__).resolve().parent.parent / "golden"
    place = tmp_path_factory.mktemp("imported")
    import_model(decoder_folder(golden, place / "source"), name="tiny", models_folder=place, bits=16, lora=True)
    return place / "tiny"


@pytest.fixture
def base(imported: Path, tmp_path: Path) -> ModelDescription:
    return open_folder(Path(shutil.copytree(imported, tmp_path / "models" / "tiny")))


@pytest.fixture
def source(golden: Path) -> WeightSource:
    return open_source(golden / "llama_tied")


def left(base: ModelDescription) -> list[str]:
    place = Path(base.folder) / "adapters"
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def arrays(adapter: AdapterDescription) -> dict[str, np.ndarray]:
    return load_file(Path(adapter.folder) / "adapter.safetensors")


def test_the_lora_graph_is_made_on_request_only(golden: Path, tmp_path: Path, base: ModelDescription) -> None:
    assert base.lora_graph_file == "lora.onnx"
    plain = import_model(decoder_folder(golden, tmp_path / "plain"), models_folder=tmp_path / "models", bits=16)
    assert plain.lora_graph_file is None
    assert not (tmp_path / "models" / "plain" / "lora.onnx").exists()
    assert plain.model_hash == base.model_hash


def test_an_adapter_becomes_a_folder_inside_its_base(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    pairs = random_pairs(source, ("self_attn.q_proj", "self_attn.v_proj"))
    adapter = import_adapter(write_peft(tmp_path / "My-Adapter", pairs), base)
    assert (adapter.name, adapter.full_name, adapter.rank) == ("my-adapter", "tiny:my-adapter", 4)
    assert adapter.modules == ("self_attn.q_proj", "self_attn.v_proj")
    assert scan_adapters(base) == [adapter]
    verify_adapter(adapter)
    manifest = read_adapter_manifest(Path(adapter.folder))
    assert manifest.notes == ("trained for tiny",)
    assert manifest.parameters == sum(a.size + b.size for a, b in pairs.values())
    assert set(arrays(adapter)) == {f"lora.{layer}.qkv.{side}" for layer in range(2) for side in "ab"}
    assert left(base) == ["my-adapter"]
    assert [entry.name for entry in scan(Path(base.folder).parent)] == ["tiny"]


def test_gguf_and_peft_files_of_one_adapter_give_the_same_matrices(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    pairs = random_pairs(source)
    ours = import_adapter(write_peft(tmp_path / "peft", pairs), base)
    theirs = import_adapter(write_gguf(tmp_path / "adapter.gguf", source, pairs), base, name="gguf")
    assert arrays(ours).keys() == arrays(theirs).keys()
    assert all(np.array_equal(values, arrays(theirs)[name]) for name, values in arrays(ours).items())


def test_a_gguf_adapter_without_alpha_is_added_as_it_is(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    pairs = random_pairs(source, ("mlp.down_proj",))
    adapter = import_adapter(write_gguf(tmp_path / "raw.gguf", source, pairs, alpha=0), base)
    assert np.array_equal(arrays(adapter)["lora.0.down.b"], pairs["model.layers.0.mlp.down_proj"][1].T)
    assert "no alpha" in read_adapter_manifest(Path(adapter.folder)).notes[0]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "biases"),
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa_niter_16"),
        ({"r": 8}, "rank 4 in adapter_model.safetensors, 8 in adapter_config.json"),
        ({"rank_pattern": {"layers.1.mlp.up_proj": 2}}, "layers.1.mlp.up_proj: rank 4"),
        ({"rank_pattern": {"(": 2}}, "a pattern that is none"),
        ({"rank_pattern": [1]}, "rank_pattern is no table"),
        ({"lora_alpha": "many"}, "lora_alpha is 'many'"),
    ],
)
def test_what_the_graph_cannot_express_is_refused_by_name(
    tmp_path: Path, base: ModelDescription, source: WeightSource, config: dict[str, Any], says: str
) -> None:
    folder = write_peft(tmp_path / "adapter", random_pairs(source), **config)
    with pytest.raises(ImportFailed) as caught:
        import_adapter(folder, base)
    assert says in caught.value.message
    assert caught.value.hint
    assert left(base) == []
    assert not (Path(base.folder) / "adapters").exists()


def test_every_unsupported_part_is_named_in_one_error(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    row = np.ones((4, 4), np.float32)
    extra = {
        "base_model.model.lm_head.lora_A.weight": row,
        "base_model.model.model.embed_tokens.lora_embedding_A": row,
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": row,
        "base_model.model.model.norm.weight": row,
    }
    folder = write_peft(tmp_path / "adapter", random_pairs(source), extra=extra, use_dora=True, bias="lora_only")
    with pytest.raises(ImportFailed) as caught:
        import_adapter(folder, base)
    for part in ("DoRA (use_dora)", "lora_only", "the output layer", "a token embedding", "a magnitude", "a norm"):
        assert part in caught.value.message


def wrong_pair(source: WeightSource, layer: str, a: tuple[int, int], b: tuple[int, int]) -> dict[str, Any]:
    return random_pairs(source, ("mlp.up_proj",)) | {layer: (np.ones(a, np.float32), np.ones(b, np.float32))}


@pytest.mark.parametrize(
    ("layer", "a", "b", "says"),
    [
        ("model.layers.0.mlp.up_proj", (4, 31), (32, 4), "layer 0 mlp.up_proj: A takes 31 values, the base has 32"),
        ("model.layers.1.mlp.up_proj", (4, 32), (7, 4), "layer 1 mlp.up_proj: B gives 7 values, the base has 32"),
        ("model.layers.9.mlp.up_proj", (4, 64), (128, 4), "layer 9 mlp.up_proj: the base has 2 layers"),
        ("model.layers.0.mlp.up_proj", (4, 64), (128, 5), "has rank 4, B [128, 5] rank 5"),
        ("model.layers.0.mlp.up_proj", (0, 64), (128, 0), "rank 0 is not from 1 to 256"),
        ("model.layers.0.mlp.up_proj", (300, 64), (128, 300), "rank 300 is not from 1 to 256"),
    ],
)
def test_pairs_of_a_wrong_shape_are_refused_by_name(
    tmp_path: Path, base: ModelDescription, source: WeightSource, layer: str, a: Any, b: Any, says: str
) -> None:
    folder = write_peft(tmp_path / "adapter", wrong_pair(source, layer, a, b))
    with pytest.raises(ImportFailed) as caught:
        import_adapter(folder, base)
    assert says in caught.value.message
    assert left(base) == []


def test_a_pair_without_its_other_half_is_refused(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    alone = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": np.ones((4, 64), np.float32)}
    folder = write_peft(tmp_path / "adapter", random_pairs(source, ("mlp.down_proj",)), extra=alone)
    with pytest.raises(ImportFailed, match=r"layers\.0\.mlp\.up_proj has A but no B"):
        import_adapter(folder, base)


def test_values_that_are_no_numbers_are_refused(tmp_path: Path, base: ModelDescription, source: WeightSource) -> None:
    pairs = random_pairs(source)
    pairs["model.layers.1.mlp.up_proj"][1][3, 2] = np.nan
    with pytest.raises(ImportFailed, match=r"model\.layers\.1\.mlp\.up_proj holds values"):
        import_adapter(write_peft(tmp_path / "adapter", pairs), base)


@pytest.mark.parametrize(
    ("fields", "extra", "says"),
    [
        ({"general.architecture": "qwen2"}, {}, "it is for 'qwen2', the base is llama"),
        ({"general.type": "model"}, {}, "it is a model, not an adapter"),
        ({"adapter.type": "control-vector"}, {}, "control-vector"),
        ({}, {"blk.0.attn_norm.weight": np.ones(64, np.float32)}, "blk.0.attn_norm.weight"),
        ({}, {"token_embd.weight.lora_a": np.ones((4, 64), np.float32)}, "token_embd.weight.lora_a"),
    ],
)
def test_a_gguf_file_that_is_no_plain_lora_of_this_family_is_refused_by_name(
    tmp_path: Path,
    base: ModelDescription,
    source: WeightSource,
    fields: dict[str, str],
    extra: dict[str, Any],
    says: str,
) -> None:
    path = write_gguf(tmp_path / "adapter.gguf", source, random_pairs(source), fields=fields, extra=extra)
    with pytest.raises(ImportFailed) as caught:
        import_adapter(path, base)
    assert says in caught.value.message


def test_damaged_and_missing_files_are_refused(tmp_path: Path, base: ModelDescription, source: WeightSource) -> None:
    folder = write_peft(tmp_path / "adapter", random_pairs(source))
    weights = folder / "adapter_model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    with pytest.raises(ImportFailed, match="cut off or damaged"):
        import_adapter(folder, base)
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(ImportFailed, match="pickled"):
        import_adapter(folder, base)
    with pytest.raises(ImportFailed, match="no LoRA adapter"):
        import_adapter(Path(base.folder), base)
    with pytest.raises(ImportFailed, match="no such file"):
        import_adapter(tmp_path / "nowhere", base)
    assert left(base) == []


def test_an_adapter_is_not_imported_over_another(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    folder = write_peft(tmp_path / "adapter", random_pairs(source))
    first = import_adapter(folder, base)
    with pytest.raises(ImportFailed, match="already") as caught:
        import_adapter(folder, base)
    assert caught.value.code == "adapter_exists"
    assert scan_adapters(base) == [first]


def test_a_base_without_the_graph_takes_no_adapter(golden: Path, tmp_path: Path, source: WeightSource) -> None:
    plain = import_model(decoder_folder(golden, tmp_path / "plain"), models_folder=tmp_path / "models", bits=16)
    with pytest.raises(ImportFailed, match="without the graph") as caught:
        import_adapter(write_peft(tmp_path / "adapter", random_pairs(source)), plain)
    assert "--lora" in caught.value.hint
    assert with_adapters(plain) == (plain, ())


def test_an_adapter_given_as_a_model_is_told_apart(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    models = Path(base.folder).parent
    for path in (
        write_peft(tmp_path / "adapter", random_pairs(source)),
        write_gguf(tmp_path / "adapter.gguf", source, random_pairs(source)),
    ):
        with pytest.raises(ImportFailed) as caught:
            import_model(path, models_folder=models)
        assert "--adapter-for" in caught.value.hint


def test_a_damaged_adapter_is_reported_in_its_place(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    folder = write_peft(tmp_path / "adapter", random_pairs(source))
    cut, other, torn, changed, good = (
        import_adapter(folder, base, name=name) for name in ("cut", "other", "torn", "v", "z")
    )
    (Path(cut.folder) / "adapter.safetensors").write_bytes(b"")
    (Path(torn.folder) / "adapter.json").write_bytes(b"{")
    said = json.loads((Path(other.folder) / "adapter.json").read_text())
    (Path(other.folder) / "adapter.json").write_text(json.dumps(said | {"base_hash": "00"}))
    found = scan_adapters(base)
    assert [type(entry) for entry in found] == [BrokenAdapter] * 3 + [AdapterDescription] * 2
    assert "another import of tiny" in found[1].message
    assert usable_adapters(base) == (changed, good)
    data = bytearray((Path(changed.folder) / "adapter.safetensors").read_bytes())
    data[-1] ^= 1
    (Path(changed.folder) / "adapter.safetensors").write_bytes(data)
    verify_adapter(good)
    with pytest.raises(ModelError, match="sha256 differs"):
        verify_adapter(open_adapter(Path(changed.folder), base))


def test_a_base_with_adapters_is_served_through_one_graph(
    tmp_path: Path, base: ModelDescription, source: WeightSource
) -> None:
    assert with_adapters(base) == (base, ())
    adapter = import_adapter(write_peft(tmp_path / "adapter", random_pairs(source, ALL)), base)
    served, adapters = with_adapters(base)
    assert (served.graph_file, served.model_hash, adapters) == ("lora.onnx", base.model_hash, (adapter,))


def adapter_of(base: str, name: str) -> AdapterDescription:
    return AdapterDescription(
        name=name, base=base, folder="/", adapter_hash="00", size_bytes=1, rank=1, modules=(), layers=1
    )


def test_names_lead_to_a_model_and_an_adapter() -> None:
    adapters = [adapter_of("a", "poet"), adapter_of("b", "poet"), adapter_of("b", "coder")]

    def resolve(name: str) -> tuple[str, str]:
        return resolve_name(name, models=["a", "b", "coder:1"], adapters=adapters, default="a")

    assert resolve("a") == ("a", "")
    assert resolve("") == resolve("default") == ("a", "")
    assert resolve("a:poet") == resolve("default:poet") == ("a", "poet")
    assert resolve("coder") == ("b", "coder")
    assert resolve("coder:1") == ("coder:1", "")
    assert resolve("unknown") == ("unknown", "")
    with pytest.raises(ModelNotFound, match="several") as caught:
        resolve("poet")
    assert "a:poet, b:poet" in caught.value.hint
    with pytest.raises(ModelNotFound, match="no adapter 'coder'"):
        resolve("a:coder")
    assert split_name("a:poet") == ("a", "poet")
    assert split_name("a") == ("a", "")


def test_kv_of_different_adapters_never_has_one_key() -> None:
    keys = {kv_hash("m", ""), kv_hash("m", "x"), kv_hash("m", "y"), kv_hash("n", "x"), kv_hash("mx", "")}
    assert len(keys) == 5
    assert kv_hash("m", "") == "m"
