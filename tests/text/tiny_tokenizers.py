"""Small real tokenizers of the three kinds that models have, made in memory."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from magnitude.models.description import SpecialTokens
from magnitude.text.tokenizer import TextTokenizer

_CORPUS = [
    "The capital of France is Paris. The weather in Paris is fine today.",
    "<tool_call> name arguments get_weather city hello world user assistant system",
    '{"name": "get_weather", "arguments": {"city": "Paris"}} {"answer": 42}',
    "Dear you, how are you? I am fine, thank you. one two three four five six seven",
]


def byte_level() -> TextTokenizer:
    """GPT-2's kind, with ChatML markers; no begin token (as SmolLM2)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return TextTokenizer(tokenizer, SpecialTokens(bos=None, eos=(2,), pad=0))


def byte_fallback(*, add_bos: bool = True) -> TextTokenizer:
    """Llama's kind: space marks, `<0xEA>` pieces, a post-processor that adds `<s>`."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for char in "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?<>|_[]/{}\":'-":
        vocab[char] = len(vocab)
    merges = [("▁", "y"), ("o", "u"), ("▁y", "ou"), ("▁", "D"), ("e", "a"), ("▁D", "ea"), ("▁Dea", "r"), ("▁", "h")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return TextTokenizer(tokenizer, SpecialTokens(bos=1, eos=(2,), add_bos=add_bos))


def word_piece() -> TextTokenizer:
    """BERT's kind: CLS and SEP around the text, and a fixed padding as MiniLM's file has it."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask", "cls", "hello", "world", "paris", "is"]
    words += [
        "the",
        "capital",
        "of",
        "france",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{c}" for c in "abcdefghijklmnop"),
    ]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in words[:5]])
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    return TextTokenizer(tokenizer, SpecialTokens(pad=0))
