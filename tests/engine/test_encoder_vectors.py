"""The embedded encoder: a text's vector does not depend on what it is computed with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from magnitude.engine.encoder import Encoder
from magnitude.engine.encoder_buckets import bucket_tokens
from magnitude.engine.sessions import open_session
from magnitude.models.manifest import describe, read_manifest

pytestmark = pytest.mark.models


def test_company_and_padding_do_not_change_a_texts_vector(magnitude_home: Path):
    folder = magnitude_home / "models" / "all-minilm-l6-v2"
    model = describe(folder, read_manifest(folder))
    encoder = Encoder(model, open_session(folder / model.graph_file, 1))
    rng = np.random.default_rng(6)
    texts = [[101, *map(int, rng.integers(1000, 20000, n)), 102] for n in (1, 6, 30, 60, 97)]
    alone = [encoder.run([ids], [], bucket_tokens(len(ids), 256)).output[0].copy() for ids in texts]
    together = encoder.run(texts, [], 104).output
    assert np.allclose(together, alone, atol=1e-5)
    assert not np.allclose(together[0], together[1], atol=0.1)
