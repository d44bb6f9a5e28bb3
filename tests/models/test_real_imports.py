"""The embedded models as scripts/test has imported them: figures and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.models.catalogue import open_folder, verify_integrity
from magnitude.models.golden import check, read_golden
from magnitude.models.importing.accuracy import KL_LOSS_NATS
from magnitude.models.importing.graph_runner import DecoderRunner, EncoderRunner
from magnitude.models.manifest import read_manifest

pytestmark = pytest.mark.models


def test_the_chat_model_s_blocks_are_stored_without_loss_and_compute_the_float_model_s_logits(
    magnitude_home: Path,
) -> None:
    manifest = read_manifest(magnitude_home / "models" / "smollm2-135m-instruct")
    assert manifest.quantisation is not None
    assert all(group.lossless for group in manifest.quantisation.groups)
    in_float = next(entry for entry in manifest.verification if entry.graph == "float activations")
    assert in_float.reference == "float32 weights"
    assert in_float.top1_agreement == 1.0
    assert in_float.kl_nats == pytest.approx(0, abs=1e-5)
    assert manifest.quantisation.accuracy_level == 4
    chosen = manifest.quantisation.accuracy_reason.partition(":")[0]
    in_int8 = next(entry for entry in manifest.verification if entry.graph == chosen)
    assert in_int8.kl_nats is not None
    assert in_int8.kl_nats <= KL_LOSS_NATS


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "all-minilm-l6-v2"])
def test_an_embedded_model_is_whole_and_passes_its_golden_set(magnitude_home: Path, name: str) -> None:
    model = open_folder(magnitude_home / "models" / name)
    verify_integrity(model, deep=True)
    golden = read_golden(Path(model.folder), model.model_hash)
    assert golden is not None
    graph = Path(model.folder) / model.graph_file
    if model.decoder is not None:
        decoder = DecoderRunner(graph, model.decoder)
        result = check(lambda ids: decoder.logits(ids)[-1], golden)
    else:
        assert model.encoder is not None
        result = check(EncoderRunner(graph, model.encoder).vector, golden)
    assert result.prompts >= 6
    assert result.passed, result.reason
