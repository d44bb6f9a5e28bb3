"""The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, for byte-level BPE.

A pre-tokenizer cuts text into words before any merge. A wrong one gives other ids for the same text, without any
error, so a name that is not listed here is refused. Each entry follows the `tokenizer.json` of the model family
that the name stands for; where llama.cpp differs from it, that is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tokenizers import Regex, normalizers, pre_tokenizers

from magnitude.errors import ImportFailed

# OpenAI's cl100k pattern, with groups of one to three digits (Llama 3) or single digits (Qwen 2).
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """How one family cuts text. `ignore_merges`: a word that is itself a token is taken whole, without merging.

    `adds_bos` is llama.cpp's default for the family, for files that do not say.
    """

    cut: Callable[[], Any]
    normalizer: Callable[[], Any] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _byte_level(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _gpt2() -> Any:
    return _byte_level(True)


def _single_digits_then_gpt2() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level(True)])


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)


def _llama3() -> Any:
    return pre_tokenizers.Sequence([_split(_CL100K % "{1,3}"), _byte_level(False)])


def _qwen2() -> Any:
    return pre_tokenizers.Sequence([_split(_CL100K % ""), _byte_level(False)])


def _default() -> Any:
    # What llama.cpp does for files whose converter wrote "default": punctuation apart, GPT-2's words, runs of
    # digits apart, digits in threes. The family behind such a file is not known; these ids are llama.cpp's.
    return pre_tokenizers.Sequence(
        [
            _split(r"[\p{P}\$\+<=>\^~\|]+"),
            _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
            _split(r"\p{N}+"),
            _split(r"[0-9][0-9][0-9]"),
            _byte_level(False),
        ]
    )


_GPT2 = PreTokenizer(cut=_gpt2)
_STARCODER = PreTokenizer(cut=_single_digits_then_gpt2)
_LLAMA3 = PreTokenizer(cut=_llama3, ignore_merges=True, adds_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer(cut=_default),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    # Qwen's own tokenizer composes characters first (NFC); llama.cpp leaves that step out.
    "qwen2": PreTokenizer(cut=_qwen2, normalizer=normalizers.NFC),
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """The pre-tokenizer called `name` in a GGUF file. Raises `ImportFailed` for one that is not known."""
    if name is None:
        raise ImportFailed(
            "the GGUF file names no pre-tokenizer (tokenizer.ggml.pre is missing)",
            hint="An old converter made it; convert the original model again, or import its Hugging Face folder",
            param="tokenizer.ggml.pre",
        )
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        raise ImportFailed(
            f"the GGUF file's pre-tokenizer {name!r} is not known, and a guess would give wrong tokens",
            hint=f"Import the model's Hugging Face folder instead. Known: {', '.join(PRE_TOKENIZERS)}",
            param="tokenizer.ggml.pre",
        )
    return known
