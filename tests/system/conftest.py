"""One running service for all system tests, with models of every kind."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from agent_client import link_models, write_settings
from onnx import TensorProto, helper
from started_service import GOLDEN, RunningService, import_source
from tiny_service import TinyService
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing


@pytest.fixture(scope="session", autouse=True)
def hang_up_is_not_ignored() -> None:
    """A service started by `nohup` ignores SIGHUP, and so would all that a test run under `nohup` starts."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def service_home(magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the two embedded models, the tiny reranker, and a plain graph without a tokenizer."""
    home = tmp_path_factory.mktemp("home")
    models = home / "models"
    models.mkdir()
    for folder in (magnitude_home / "models").iterdir():
        if not folder.name.startswith("."):
            (models / folder.name).symlink_to(folder)
    # With a float KV cache verified drafts round differently, and some tests compare two answers to one request.
    (home / "magnitude.yaml").write_text("engine: {speculation: off}\n")
    import_source("tiny-reranker", home, reranker_folder(tmp_path_factory.mktemp("reranker")))
    import_source("affine", home, affine_graph(tmp_path_factory.mktemp("graph") / "affine.onnx"))
    return home


@pytest.fixture(scope="session")
def service(service_home: Path) -> Iterator[RunningService]:
    running = RunningService(service_home)
    running.wait_ready()
    yield running
    running.stop()


@pytest.fixture
def services() -> Iterator[list[TinyService]]:
    """Services that a test starts and puts in here; what is left of them at its end is killed."""
    started: list[TinyService] = []
    yield started
    for service in started:
        service.process.kill()
        service.process.wait()


@pytest.fixture(scope="session")
def agents(magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service as agents use it: two API keys, the default batch, the embedded models."""
    home = tmp_path_factory.mktemp("agents")
    link_models(home, magnitude_home)
    write_settings(home)
    running = RunningService(home)
    running.wait_ready()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def steady(magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service as agents use it that never changes by itself how many it computes at once: for who gets how many."""
    home = tmp_path_factory.mktemp("steady")
    link_models(home, magnitude_home)
    write_settings(home, policy={"explore": "off"})
    running = RunningService(home)
    running.wait_ready()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def narrow(magnitude_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that computes one generation at a time, so that everybody else waits: for who goes first."""
    home = tmp_path_factory.mktemp("narrow")
    link_models(home, magnitude_home)
    engine = {"max_batch_size": 1, "context_length": 2048}
    write_settings(home, engine=engine, server={"max_queue": 2})
    running = RunningService(home)
    running.wait_ready()
    yield running
    running.stop()


def reranker_folder(folder: Path) -> Path:
    """The tiny cross-encoder of the golden data, with a tokenizer of its vocabulary's size."""
    golden = GOLDEN / "bert_reranker"
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((golden / name).read_bytes())
    size = json.loads((golden / "config.json").read_text())["vocab_size"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "paris", "is", "in", "france", "cats", "sleep"]
    words += [f"w{number}" for number in range(size - len(words))]
    tokenizer = Tokenizer(WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def affine_graph(path: Path) -> Path:
    """y = 2 x + 1 over float32 [rows, 3]."""
    nodes = [helper.make_node("Mul", ["x", "two"], ["doubled"]), helper.make_node("Add", ["doubled", "one"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [
            helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0]),
            helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path
