"""Record how llama.cpp tokenises, for the tests of GGUF tokenizers.

    python scripts/make_tokenizer_golden.py tests/golden [SMOLLM2.gguf]

Needs llama-cpp-python, gguf and tokenizers (none of which the tests need, but for tokenizers). Two small vocabularies
are trained on this project's golden texts, written as GGUF files without weights, and loaded by llama.cpp: a
byte-level BPE once for each pre-tokenizer, and a SentencePiece BPE. Of a real file only texts and ids are kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
from llama_cpp import Llama
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [
    "Hello, world! It's 12:45 and I'm here; you're there, they'll see.",
    "def f(x):\n    return x**2 + 3*x - 1  # a comment\n\n\nclass A:\n\tpass\n",
    "3.14159 1000000 12345678901234567890 0x1F 1e-5 ½ ² Ⅷ",
    "   leading,   inner   and trailing spaces   ",
    "\n\n\r\n \t tabs\tand\r\nlines \n",
    "Ünïcödé, naïve façade, Straße, ŁÓDŹ, Ελληνικά, Русский текст",
    "早上好，你好吗？ おはようございます。 한국어 텍스트",  # noqa: RUF001
    "🙂👍🏽 👨‍👩‍👧‍👦 e\u0301 \u200b zero width",
    '{"a": [1, 2, {"b": null}], "c": "d\\"e"}',
    "<|im_start|>user\nHi<|im_end|>\n",
    "<tool>call</tool> and <s> not a token </s>",
    "CamelCaseAndSCREAMING_snake-kebab/path\\to.file@example.com",
    "can't CAN'T won'T I'LL 'tis ''quoted''",
    "a",
    " ",
    "....!!!???---+++===$$$%%%^^^~~~```|||",
]
PRE = ("gpt-2", "smollm", "llama-bpe", "qwen2", "default")


def corpus() -> list[str]:
    folder = ROOT / "service/magnitude/models/importing/golden_texts"
    return [path.read_text() for path in sorted(folder.glob("*.txt"))]


def byte_level_vocabulary() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        corpus(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in state["merges"]]
    types = [1] * len(tokens) + [3, 3, 3, 4]
    tokens += ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool>"]
    return {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "add_bos_token": False,
    }


def sentencepiece_vocabulary() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=500, show_progress=False))
    state = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(state["vocab"], key=state["vocab"].get)
    # SentencePiece gives merged pieces the scores 0, -1, -2 in the order of the merges, and single characters less.
    merged = [piece for piece in pieces if len(piece) > 1]
    single = [piece for piece in pieces if len(piece) == 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *single]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(merged) + len(single))]
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": True,
    }


def write(path: Path, fields: dict[str, Any], **more: Any) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in {
        "context_length": 64,
        "embedding_length": 8,
        "block_count": 1,
        "feed_forward_length": 8,
    }.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in {**fields, **more}.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ids(path: Path) -> list[list[int]]:
    model = Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=False, special=True) for text in TEXTS]


def main() -> None:
    out = Path(sys.argv[1])
    golden: dict[str, Any] = {"texts": TEXTS, "byte_level": byte_level_vocabulary(), "ids": {}}
    golden["sentencepiece"] = sentencepiece_vocabulary()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        for pre in PRE:
            write(path, golden["byte_level"], pre=pre)
            golden["ids"][pre] = ids(path)
        for space in (True, False):
            write(path, golden["sentencepiece"], add_space_prefix=space)
            golden["ids"]["sentencepiece" if space else "sentencepiece without a first space"] = ids(path)
    if len(sys.argv) > 2:
        golden["ids"]["embedded"] = ids(Path(sys.argv[2]))
    (out / "tokenizers_by_llama_cpp.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
