"""A board whose kernels compute something else: made by a golden set that no kernel of this board can meet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import msgspec
import onnx
import pytest
from onnx import helper
from started_service import RunningService

from magnitude.models.catalogue import open_folder
from magnitude.models.golden import read_golden, write_golden
from magnitude.models.golden_texts import GOLDEN_FILE
from magnitude.models.integrity import file_entry
from magnitude.models.manifest import read_manifest, write_manifest

pytestmark = pytest.mark.models

CHAT = "smollm2-135m-instruct"
EMBEDDER = "all-minilm-l6-v2"


def copied_model(magnitude_home: Path, home: Path) -> Path:
    target = home / "models" / CHAT
    target.parent.mkdir(parents=True)
    shutil.copytree(magnitude_home / "models" / CHAT, target)
    (home / "models" / EMBEDDER).symlink_to(magnitude_home / "models" / EMBEDDER)
    return target


def break_golden(folder: Path) -> None:
    """Shift the expected logits by more than the tolerance, and make the manifest vouch for the new file."""
    manifest = read_manifest(folder)
    golden = read_golden(folder, manifest.model_hash)
    assert golden is not None
    prompts = [
        msgspec.structs.replace(prompt, logits=[prompt.logits[0], *(value - 50 for value in prompt.logits[1:])])
        for prompt in golden.prompts
    ]
    write_golden(folder, msgspec.structs.replace(golden, prompts=prompts))
    files = {**manifest.files, GOLDEN_FILE: file_entry(folder / GOLDEN_FILE)}
    write_manifest(folder, msgspec.structs.replace(manifest, files=files))


def break_kernels(folder: Path) -> None:
    """Make the graph that is served negate its logits; the fallback graph stays as it was."""
    path = folder / open_folder(folder).graph_file
    graph = onnx.load(str(path), load_external_data=False)
    head = next(node for node in graph.graph.node if "logits" in node.output)
    head.output[:] = ["raw_logits"]
    graph.graph.node.append(helper.make_node("Neg", ["raw_logits"], ["logits"]))
    path.write_bytes(graph.SerializeToString())
    manifest = read_manifest(folder)
    write_manifest(folder, msgspec.structs.replace(manifest, files={**manifest.files, path.name: file_entry(path)}))


def test_a_model_that_fails_its_golden_set_serves_from_the_fallback_graph_and_says_so(
    magnitude_home: Path, tmp_path: Path
) -> None:
    break_kernels(copied_model(magnitude_home, tmp_path))
    service = RunningService(tmp_path)
    try:
        service.wait_ready()
        reasons = httpx.get(f"{service.url}/readyz", timeout=10).json()["reasons"]
        assert "fallback" in reasons[0]
        body = {"messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0}
        reply = httpx.post(f"{service.url}/v1/chat/completions", json={**body, "max_tokens": 8}, timeout=120)
        assert "Paris" in reply.json()["choices"][0]["message"]["content"]
    finally:
        service.stop()


def test_garbage_is_not_served(magnitude_home: Path, tmp_path: Path) -> None:
    break_golden(copied_model(magnitude_home, tmp_path))
    service = RunningService(tmp_path)
    try:
        health = service.wait_loaded()
        assert health["ready"] is False
        assert "golden" in json.dumps(health["reasons"])
        body = {"messages": [{"role": "user", "content": "hi"}]}
        reply = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status_code == 503
        embedding = httpx.post(f"{service.url}/v1/embeddings", json={"input": "hi"}, timeout=60)
        assert embedding.status_code == 200
        assert "does not compute on this CPU" in reply.json()["error"]["message"]
        assert reply.json()["error"]["hint"]
    finally:
        service.stop()
