"""Short texts of several kinds, written for this project, over which graphs are compared and KV scales found."""

from __future__ import annotations

from importlib.resources import files

from magnitude.models.importing.verify_decoder import FEWEST_TOKENS


def golden_ids(tokenizer_json: str) -> list[list[int]]:
    """The texts as ids, as the service would make them. Those that come out too short are left out (a tokenizer of
    one language may make next to nothing of another)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    names = sorted(entry.name for entry in files(__name__).iterdir() if entry.name.endswith(".txt"))
    texts = [list(tokenizer.encode((files(__name__) / name).read_text(encoding="utf-8")).ids) for name in names]
    return [ids for ids in texts if len(ids) >= FEWEST_TOKENS]
