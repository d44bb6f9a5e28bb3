"""The tokenizer of a model folder (Hugging Face's or ONNX Runtime GenAI's layout).

The folder's own `tokenizer.json` is kept, without its padding and truncation: those are habits of the pipeline
that saved it (MiniLM's file pads every text to 128 tokens), and the service decides them per request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from magnitude.errors import ImportFailed
from magnitude.models.description import SpecialTokens
from magnitude.models.tokenizers.chat_template import folder_chat_template
from magnitude.models.tokenizers.parts import TokenizerParts, end_ids
from magnitude.models.untrusted import (
    CONFIG_MAX_BYTES,
    TOKENIZER_MAX_BYTES,
    VOCABULARY_MAX_TOKENS,
    read_json_object,
    read_text_capped,
)

_VOCABULARY_FILES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_PROBE = "A probe: 1, 2 and 3."


def tokenizer_from_folder(
    folder: Path, *, bos: int | None = None, eos: Iterable[int] = (), pad: int | None = None
) -> TokenizerParts:
    """Reads the folder's tokenizer.

    `bos`, `eos` and `pad` are what the model's own configuration says; `generation_config.json` and
    `tokenizer_config.json` add to them. Raises `ModelError` for missing, damaged or inconsistent files.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        _refuse_missing(folder)
    text = read_text_capped(path, TOKENIZER_MAX_BYTES, what="tokenizer")
    tokenizer = _load(text, path)
    tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    if tokens > VOCABULARY_MAX_TOKENS:
        raise ImportFailed(f"{path}: {tokens} tokens, more than the {VOCABULARY_MAX_TOKENS} that are read", hint="")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    config = _optional_object(folder / "tokenizer_config.json")
    generation = _optional_object(folder / "generation_config.json")
    template, note = folder_chat_template(folder, config)
    names = {name: token_text(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    controls = {token.content: int(i) for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    named = [*_ids(generation.get("eos_token_id")), *eos]
    if (eos_text := names["eos_token"]) and (eos_id := tokenizer.token_to_id(eos_text)) is not None:
        named.append(eos_id)
    bos = _first(bos, _ids(generation.get("bos_token_id")), _of_text(tokenizer, names["bos_token"]))
    pad = _first(pad, _ids(generation.get("pad_token_id")), _of_text(tokenizer, names["pad_token"]))
    # Some folders keep the begin token out of tokenizer.json and leave it to a flag.
    add_bos = bos is not None and (_adds(tokenizer, bos) or config.get("add_bos_token") is True)
    special = SpecialTokens(bos=bos, eos=end_ids(named, controls), pad=pad, add_bos=add_bos)
    kept = {key: value for key, value in config.items() if key != "chat_template"}
    return TokenizerParts(
        tokenizer_json=tokenizer.to_str(pretty=False),
        tokenizer_config=kept,
        special_tokens_map={name: text for name, text in names.items() if text is not None},
        special=special,
        tokens=_ids_needed(tokenizer),
        chat_template=template,
        notes=(note,) if note else (),
    )


def token_text(value: object) -> str | None:
    """A token as `tokenizer_config.json` writes it: a text, or a map with its `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _refuse_missing(folder: Path) -> None:
    found = [name for name in _VOCABULARY_FILES if (folder / name).exists()]
    if found:
        raise ImportFailed(
            f"{folder}: there is no tokenizer.json, only {', '.join(found)}",
            hint="Convert it once where transformers is installed: "
            "AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)",
            param=str(folder / "tokenizer.json"),
        )
    raise ImportFailed(
        f"{folder}: there is no tokenizer.json",
        hint="Fetch the model's folder again, with all its files",
        param=str(folder / "tokenizer.json"),
    )


def _load(text: str, path: Path) -> Any:
    try:
        document = json.loads(text)  # names the line of a cut-off file; the library does not
        tokenizer = Tokenizer.from_str(text)
        moved = _moved_tokens(document, tokenizer)
    except (RecursionError, Exception) as error:  # the library raises plain Exception
        raise ImportFailed(
            f"{path}: this is not a usable tokenizer ({error})",
            hint="The file is cut off, damaged, or newer than the installed tokenizers library",
            param=str(path),
        ) from error
    if moved:
        raise ImportFailed(
            f"{path}: added tokens do not get the ids that the file gives them: {', '.join(moved[:5])}",
            hint="There is a hole before them; save the tokenizer again with all its tokens",
            param=str(path),
        )
    return tokenizer


def _moved_tokens(document: Any, tokenizer: Any) -> list[str]:
    """Added tokens whose id in the file is not the one they got: the library counts on from the vocabulary's end,
    and a hole before a token moves it without a word."""
    listed = document.get("added_tokens") or []
    pairs = [(token["content"], token["id"]) for token in listed]
    return [f"{text!r} ({declared})" for text, declared in pairs if tokenizer.token_to_id(text) != declared]


def _optional_object(path: Path) -> dict[str, Any]:
    return read_json_object(path, CONFIG_MAX_BYTES, what=path.name) if path.exists() else {}


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]


def _of_text(tokenizer: Any, text: str | None) -> list[int]:
    token = None if text is None else tokenizer.token_to_id(text)
    return [] if token is None else [int(token)]


def _first(given: int | None, *others: list[int]) -> int | None:
    if given is not None:
        return given
    return next((values[0] for values in others if values), None)


def _adds(tokenizer: Any, bos: int | None) -> bool:
    """Whether the tokenizer's own post-processor puts the begin token first: seen by trying it."""
    ids: list[int] = tokenizer.encode(_PROBE).ids
    bare: list[int] = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    return bos is not None and ids[:1] == [bos] and bare[:1] != [bos]


def _ids_needed(tokenizer: Any) -> int:
    """One more than the highest id: added tokens may lie beyond the base vocabulary, with holes before them."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
