"""The texts of a model's golden set, and how far results may lie from each other. Without NumPy: the service reads
them too, and would grow by 30 MB for it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from magnitude.errors import ModelError
from magnitude.models.description import ModelDescription
from magnitude.models.untrusted import CONFIG_MAX_BYTES, read_capped

GOLDEN_FILE = "golden.json"
GOLDEN_VERSION = 1

# Allowed mean difference of the kept logits from the stored ones. Correct kernels: below 0.2 (measured between
# accuracy levels 0 and 4 of the embedded model); a saturating or wrong one: several units.
LOGIT_TOLERANCE = 1.0

# Encoders: cosine of the vector with the stored one. Float kernels differ by 1e-6, INT8 activations by 1e-3.
COSINE_TOLERANCE = 0.99

# Lengths of the texts that stand in for a golden set: less than a piece of a prompt, an odd number, a whole piece.
_STAND_IN_LENGTHS = (5, 33, 128)
# Nearly every vocabulary is larger; a prime step through it gives no two texts alike.
_STAND_IN_VOCABULARY = 1000
_STAND_IN_STEP = 389


class _Ids(msgspec.Struct, frozen=True):
    ids: list[int]


class _Texts(msgspec.Struct, frozen=True):
    version: int
    model_hash: str
    prompts: list[_Ids] = []
    vectors: list[_Ids] = []


def golden_texts(model: ModelDescription, longest_tokens: int) -> list[list[int]]:
    """Token ids of at most `longest_tokens` each, by which two sessions of the model are compared: those of its
    golden set, else some that mean nothing. Blocks; raises nothing: a damaged file is the golden gate's to report."""
    try:
        data = read_capped(Path(model.folder) / GOLDEN_FILE, CONFIG_MAX_BYTES, what="golden set")
        found = msgspec.json.decode(data, type=_Texts)
        ours = found.version == GOLDEN_VERSION and found.model_hash == model.model_hash
        texts = [item.ids for item in (*found.prompts, *found.vectors)] if ours else []
    except (OSError, ValueError, msgspec.MsgspecError, ModelError):
        texts = []
    if not texts:
        most = _STAND_IN_VOCABULARY if model.decoder is None else min(_STAND_IN_VOCABULARY, model.decoder.vocab_size)
        texts = [
            [(start + at * _STAND_IN_STEP) % most for at in range(length)]
            for start, length in enumerate(_STAND_IN_LENGTHS)
        ]
    return [ids[:longest_tokens] for ids in texts if ids[:longest_tokens]]
