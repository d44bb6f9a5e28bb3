"""The verbs about models, on folders that hold just enough to be listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from magnitude.cli import budget, import_, list_, rm, show
from magnitude.errors import BudgetExceeded, ImportFailed, ModelError, RequestError
from magnitude.models.adapters import ADAPTER_FILE, AdapterManifest, write_adapter_manifest
from magnitude.models.description import DecoderShape, SpecialTokens
from magnitude.models.integrity import file_entry, model_hash
from magnitude.models.manifest import (
    Manifest,
    Quantisation,
    SourceEntry,
    TensorGroup,
    Verification,
    read_manifest,
    write_manifest,
)

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
app = typer.Typer()
for verb in (budget, import_, list_, rm, show):
    verb.register(app)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    (folder / "chat").mkdir(parents=True)
    monkeypatch.setenv("MAGNITUDE_MODELS", str(folder))
    (folder / "chat" / "model.onnx").write_bytes(b"graph")
    (folder / "chat" / "model.onnx.data").write_bytes(bytes(1000))
    files = {name: file_entry(folder / "chat" / name) for name in ("model.onnx", "model.onnx.data")}
    write_manifest(
        folder / "chat",
        Manifest(
            schema=1,
            name="chat",
            kind="decoder",
            family="llama",
            graph_file="model.onnx",
            source=SourceEntry(format="gguf", file="chat.gguf", sha256="00", size_bytes=1),
            files=files,
            weight_bytes=1000,
            model_hash=model_hash(files, files),
            special=SpecialTokens(eos=(2,)),
            decoder=DecoderShape(
                layers=30, kv_heads=3, head_dim=64, vocab_size=49152, hidden_size=576, context_length=8192
            ),
            quantisation=Quantisation(
                bits=4,
                groups=(TensorGroup(tensors="all", source_format="Q4_1", stored_format="int4", lossless=True),),
                accuracy_level=4,
                accuracy_reason="because",
            ),
            verification=(
                Verification(
                    reference="float", graph="int8", tokens=9, top1_agreement=0.9, kl_nats=0.01, passed=True
                ),
            ),
            licence="apache-2.0",
        ),
    )
    return folder


def run(*arguments: str, says: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=says, catch_exceptions=False)
    return result.output


def test_list_shows_models_and_what_is_wrong_with_broken_ones(models: Path) -> None:
    (models / "torn").mkdir()
    (models / "torn" / "manifest.json").write_bytes(b"{")
    output = run("list")
    assert "chat" in output
    assert "torn cannot be used" in output


def test_list_as_json_is_complete(models: Path) -> None:
    (models / "torn").mkdir()
    listed = json.loads(run("list", "--json"))
    assert [(entry["name"], entry["broken"]) for entry in listed] == [("chat", False), ("torn", True)]
    assert listed[0]["decoder"]["layers"] == 30


def test_an_empty_models_folder_says_how_to_get_a_model(tmp_path: Path) -> None:
    assert "magnitude import" in run("list", "--models-folder", str(tmp_path))


def test_show_tells_source_quantisation_and_comparison(models: Path) -> None:
    output = run("show", "chat")
    for fact in ("chat.gguf", "Q4_1", "because", "0.9000", "0.0100", "none: chat requests are refused"):
        assert fact in output


def test_show_as_json_has_the_manifest(models: Path) -> None:
    assert json.loads(run("show", "chat", "--json"))["manifest"]["quantisation"]["accuracy_level"] == 4


def test_verify_finds_a_changed_file(models: Path) -> None:
    (models / "chat" / "model.onnx.data").write_bytes(b"x" * 1000)
    with pytest.raises(ModelError, match="content has changed"):
        run("show", "chat", "--verify")


def test_rm_asks_first_and_leaves_the_model_on_a_no(models: Path) -> None:
    run("rm", "chat", says="n\n")
    assert (models / "chat" / "manifest.json").exists()


def test_rm_removes_after_a_yes_and_leaves_nothing(models: Path) -> None:
    assert "removed chat" in run("rm", "chat", says="y\n")
    assert list(models.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../outside", "/etc", ".", "..", "", "chat/../../outside", "absent", ".importing-x"]
)
def test_rm_refuses_everything_but_a_model_of_the_folder(models: Path, name: str) -> None:
    outside = models.parent / "outside"
    outside.mkdir()
    with pytest.raises(ModelError):
        run("rm", name, "--yes")
    assert outside.exists()
    assert (models / "chat").exists()


def test_rm_of_a_link_keeps_what_it_points_to(models: Path) -> None:
    (models / "chat").rename(models.parent / "real")
    (models / "chat").symlink_to(models.parent / "real")
    run("rm", "chat", "--yes")
    assert (models.parent / "real" / "manifest.json").exists()
    assert not (models / "chat").is_symlink()


def test_rm_of_a_model_forgets_the_link_that_it_has_replaced_and_keeps_what_that_points_to(models: Path) -> None:
    (models / "chat").rename(models.parent / "real")
    shutil.copytree(models.parent / "real", models / "chat")
    (models / ".chat.previous").symlink_to(models.parent / "real")
    assert "removed the earlier chat\n" in run("rm", "chat", "--yes")
    assert list(models.glob("*chat*")) == []
    assert (models.parent / "real/manifest.json").exists()


@pytest.mark.parametrize("name", ["chat", "small"])
def test_rm_takes_what_each_model_has_replaced_along_and_asks_for_both_at_once(models: Path, name: str) -> None:
    """A variant is a model, and so has a predecessor."""
    variant(models, "small")
    for model in ("chat", "small"):
        shutil.copytree(models / model, models / f".{model}.previous")
    asked = run("rm", name, "--variants", says="n\n")
    assert str(models / f".{'small' if name == 'chat' else name}.previous") in asked
    assert len(list(models.iterdir())) == 4
    assert f"removed the earlier {name}" in run("rm", name, "--variants", "--yes")
    assert {path.name for path in models.iterdir()} == ({".chat.previous", "chat"} if name == "small" else set())


def test_budget_fits_and_says_the_largest_context(models: Path) -> None:
    output = run("budget", "chat", "--context", "1024", "--slots", "1", "--memory", "4000")
    assert "KV cache" in output
    assert "largest context that fits: 8192" in output


def test_budget_that_does_not_fit_says_by_how_much_and_what_would(models: Path) -> None:
    with pytest.raises(BudgetExceeded, match="are missing") as caught:
        run("budget", "chat", "--context", "8192", "--slots", "4", "--memory", "1000")
    assert "engine.context_length" in caught.value.hint


def test_budget_of_a_context_that_the_model_does_not_have_names_the_models(models: Path) -> None:
    with pytest.raises(RequestError, match="8192 positions") as caught:
        run("budget", "chat", "--context", "8193", "--memory", "100000000")
    assert "--context 8192" in caught.value.hint


def test_budget_as_json_adds_up(models: Path) -> None:
    sheet = json.loads(run("budget", "chat", "--context", "512", "--memory", "4000", "--kv", "int8", "--json"))
    assert sheet["total_bytes"] == sum(row["bytes"] for row in sheet["rows"])


def test_import_takes_a_folder_and_names_it(models: Path) -> None:
    output = run("import", str(GOLDEN / "genai_tiny_llama"), "--name", "foreign")
    assert "foreign: decoder" in output
    assert "no chat template" in output


def test_import_of_nothing_is_an_error_and_leaves_nothing(models: Path, tmp_path: Path) -> None:
    shutil.rmtree(models / "chat")
    with pytest.raises(ImportFailed, match="no such file"):
        run("import", str(tmp_path / "absent.gguf"))
    assert list(models.iterdir()) == []


def adapter_of_chat(models: Path) -> Path:
    """The model `chat` with a LoRA graph and an adapter `poet` that nobody looks into."""
    manifest = read_manifest(models / "chat")
    (models / "chat" / "lora.onnx").write_bytes(b"graph")
    write_manifest(models / "chat", msgspec.structs.replace(manifest, lora_graph_file="lora.onnx"))
    folder = models / "chat" / "adapters" / "poet"
    folder.mkdir(parents=True)
    (folder / ADAPTER_FILE).write_bytes(bytes(3000))
    write_adapter_manifest(
        folder,
        AdapterManifest(
            schema=1,
            name="poet",
            base="chat",
            base_hash=manifest.model_hash,
            source_format="peft",
            source_file="poet",
            source_sha256="00",
            adapter=file_entry(folder / ADAPTER_FILE),
            rank=8,
            modules=("self_attn.q_proj", "mlp.down_proj"),
            layers=30,
            parameters=700,
            notes=("trained for chat",),
            licence="mit",
        ),
    )
    return folder


def test_list_and_show_know_adapters(models: Path) -> None:
    folder = adapter_of_chat(models)
    output = run("list")
    assert "chat:poet" in output and "rank 8" in output
    assert json.loads(run("list", "--json"))[0]["adapters"][0]["name"] == "poet"
    output = run("show", "chat:poet", "--verify")
    for part in ("q_proj, down_proj", "700 parameters", "mit", "compared with its sha256", "trained for chat"):
        assert part in output
    assert json.loads(run("show", "chat:poet", "--json"))["manifest"]["rank"] == 8
    assert "poet" in run("show", "chat")
    (folder / ADAPTER_FILE).write_bytes(bytes(2999) + b"x")
    with pytest.raises(ModelError, match="sha256 differs"):
        run("show", "chat:poet", "--verify")
    (folder / ADAPTER_FILE).write_bytes(b"")
    assert "chat:poet cannot be used" in run("list")
    with pytest.raises(ModelError, match="no adapter 'prose'"):
        run("show", "chat:prose")


def test_rm_removes_one_adapter_or_all_with_the_model(models: Path) -> None:
    adapter_of_chat(models)
    for name in ("chat:nobody", "chat:", "chat:../..", "nobody:poet"):
        with pytest.raises(ModelError):
            run("rm", name, "--yes")
    run("rm", "chat:poet", "--yes")
    assert (models / "chat" / "manifest.json").exists()
    assert list((models / "chat" / "adapters").iterdir()) == []
    adapter_of_chat(models)
    run("rm", "chat", "--yes")
    assert not (models / "chat").exists()


def test_options_of_models_are_refused_for_an_adapter(models: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--bits is for models"):
        run("import", str(tmp_path), "--adapter-for", "chat", "--bits", "4")
    with pytest.raises(ImportFailed, match="no LoRA adapter"):
        run("import", str(tmp_path), "--adapter-for", "chat")


def variant(models: Path, name: str, *, outside: str = "", parent_hash: str | None = None) -> None:
    """A variant of `chat` beside it."""
    shutil.copytree(models / "chat", models / name)
    manifest = read_manifest(models / "chat")
    write_manifest(
        models / name,
        msgspec.structs.replace(
            manifest,
            name=name,
            variant_of="chat",
            parent_hash=manifest.model_hash if parent_hash is None else parent_hash,
            precision="int8",
            outside=outside,
        ),
    )


def test_list_shows_variants_below_their_model(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    variant(models, "a-variant")
    rows = run("list").splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["chat", "a-variant"]
    assert "variant, int8" in rows[1]


def test_list_as_json_has_one_entry_with_its_variants(models: Path) -> None:
    variant(models, "small")
    listed = json.loads(run("list", "--json"))
    assert [entry["name"] for entry in listed] == ["chat"]
    assert [entry["name"] for entry in listed[0]["variants"]] == ["small"]


def test_list_says_of_variants_why_they_are_not_used(models: Path) -> None:
    variant(models, "far", outside="KL 0.3 nats (at most 0.02)")
    variant(models, "stray", parent_hash="another")
    output = " ".join(run("list").split())
    assert "far is never chosen by itself: KL 0.3 nats" in output
    assert "stray is not served: it was compared with another import of chat" in output


def test_show_tells_what_a_variant_belongs_to(models: Path) -> None:
    variant(models, "far", outside="KL 0.3 nats (at most 0.02)")
    output = " ".join(run("show", "far").split())
    assert "variant of chat" in output
    assert "chosen by itself no: KL 0.3 nats" in output
    assert "precision int8" in output


def test_a_model_with_variants_is_removed_with_them_only(models: Path) -> None:
    variant(models, "small")
    with pytest.raises(ModelError, match=r"chat has variants.*: small") as caught:
        run("rm", "chat", "--yes")
    assert "--variants" in caught.value.hint
    assert (models / "chat").is_dir()
    output = run("rm", "chat", "--variants", "--yes")
    assert "removed small" in output
    assert "removed chat" in output
    assert list(models.iterdir()) == []


def test_whoever_keeps_a_variant_keeps_its_model(models: Path) -> None:
    variant(models, "small")
    run("rm", "chat", "--variants", says="n\n")
    assert (models / "chat").is_dir()


def test_a_variant_is_removed_alone(models: Path) -> None:
    variant(models, "small")
    run("rm", "small", "--yes")
    assert [path.name for path in models.iterdir()] == ["chat"]


def test_an_adapter_is_no_variant(models: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--variant-of"):
        run("import", str(tmp_path), "--adapter-for", "chat", "--variant-of", "chat")
