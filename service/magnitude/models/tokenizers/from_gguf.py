"""`tokenizer.json` from the tokenizer fields of a GGUF file.

Two kinds are built: byte-level BPE (`gpt2`), whose merges the file lists, and SentencePiece BPE (`llama`), whose
merges follow from the scores of its pieces. WordPiece (`bert`) and SentencePiece unigram (`t5`) files are refused:
GGUF does not carry their normalisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from magnitude.errors import ImportFailed
from magnitude.models.description import SpecialTokens
from magnitude.models.tokenizers.gguf_fields import GgufTokenizer, TokenType, gguf_tokenizer
from magnitude.models.tokenizers.parts import TokenizerParts, end_ids
from magnitude.models.tokenizers.pre_tokenizers import pre_tokenizer

SPACE = "\u2581"  # SentencePiece writes a space as this character


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Builds the tokenizer. Raises `ImportFailed` when it cannot be built exactly."""
    fields = gguf_tokenizer(metadata)
    if fields.model == "gpt2":
        pre = pre_tokenizer(fields.pre)
        tokenizer = _byte_level_bpe(fields)
        add_bos = pre.adds_bos if fields.add_bos is None else fields.add_bos
        tokenizer_class = "GPT2Tokenizer"
    elif fields.model == "llama":
        tokenizer = _sentencepiece_bpe(fields)
        add_bos = True if fields.add_bos is None else fields.add_bos  # llama.cpp's default for this kind
        tokenizer_class = "LlamaTokenizer"
    else:
        raise ImportFailed(
            f"a GGUF tokenizer of kind {fields.model!r} cannot be turned into an exact tokenizer.json",
            hint="Import the model's Hugging Face folder, which brings its own tokenizer.json",
            param="tokenizer.ggml.model",
        )
    controls = fields.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    # Control tokens are special: text from users never becomes one. User-defined tokens are found in any text
    # and stay visible in the output (Qwen's <tool_call> and <think> are of that kind).
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in controls])
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False, special=False) for text in fields.of_type(TokenType.USER_DEFINED)]
    )
    add_bos = add_bos and fields.bos is not None
    _post_process(tokenizer, fields, add_bos)
    named = [token for token in (fields.eos, *fields.further_ends) if token is not None]
    special = SpecialTokens(bos=fields.bos, eos=end_ids(named, controls), pad=fields.pad, add_bos=add_bos)
    names = {
        "bos_token": fields.spelling(fields.bos),
        "eos_token": fields.spelling(fields.eos),
        "unk_token": fields.spelling(fields.unk),
        "pad_token": fields.spelling(fields.pad),
    }
    named_tokens = {name: text for name, text in names.items() if text is not None}
    return TokenizerParts(
        tokenizer_json=tokenizer.to_str(pretty=False),
        tokenizer_config={
            "tokenizer_class": tokenizer_class,
            "add_bos_token": add_bos,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            **named_tokens,
        },
        special_tokens_map=named_tokens,
        special=special,
        tokens=len(fields.tokens),
        chat_template=fields.chat_template,
    )


def _byte_level_bpe(fields: GgufTokenizer) -> Any:
    pre = pre_tokenizer(fields.pre)
    merges = []
    for line in fields.merges:
        left, space, right = line.partition(" ")
        if not left or not space or not right or " " in right:
            raise ImportFailed(
                f"the GGUF file's merge {line[:40]!r} is not two tokens with a space between them",
                hint="The file is damaged; fetch it again",
                param="tokenizer.ggml.merges",
            )
        merges.append((left, right))
    if not merges:
        raise ImportFailed(
            "the GGUF file has a BPE vocabulary without merges",
            hint="It was made by an old converter; convert the original model again",
            param="tokenizer.ggml.merges",
        )
    vocabulary = {text: i for i, text in enumerate(fields.tokens)}
    tokenizer = _build(vocabulary, merges, ignore_merges=pre.ignore_merges)
    if pre.normalizer is not None:
        tokenizer.normalizer = pre.normalizer()
    tokenizer.pre_tokenizer = pre.cut()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(fields: GgufTokenizer) -> Any:
    """SentencePiece's BPE joins the neighbours whose union is the piece with the best score.

    As rules for a merge table: each way to cut a piece into two pieces is a merge, in the order of the scores.
    """
    if not fields.scores:
        raise ImportFailed(
            "the GGUF file has a SentencePiece vocabulary without scores",
            hint="It was made by a broken converter; convert the original model again",
            param="tokenizer.ggml.scores",
        )
    vocabulary = {text: i for i, text in enumerate(fields.tokens)}
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]
    if missing and fields.unk is None:
        raise ImportFailed(
            f"the GGUF vocabulary has neither all byte tokens (<0x{missing[0]:02X}> is missing) nor an unknown token",
            hint="The file is damaged; fetch it again",
            param="tokenizer.ggml.tokens",
        )
    tokenizer = _build(
        vocabulary,
        _merges_by_score(fields),
        unk_token=fields.spelling(fields.unk),
        fuse_unk=True,
        byte_fallback=not missing,
    )
    space_first = fields.add_space_prefix is not False
    steps = [normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), *steps] if space_first else steps)
    after = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*after, decoders.Strip(" ", 1, 0)] if space_first else after)
    return tokenizer


def _merges_by_score(fields: GgufTokenizer) -> list[tuple[str, str]]:
    # Only normal and unused pieces take part; control, user-defined and byte tokens are never merged from text.
    pieces = fields.of_type(TokenType.NORMAL, TokenType.UNUSED)
    ranked: list[tuple[float, int, int, str, str]] = []
    for text, token in pieces.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in pieces and right in pieces:
                ranked.append((-fields.scores[token], token, pieces[left], left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _build(vocabulary: dict[str, int], merges: list[tuple[str, str]], **settings: Any) -> Any:
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **settings))
    except Exception as error:  # the library raises plain Exception, with the token in its message
        raise ImportFailed(
            f"the GGUF file's vocabulary and merges do not agree: {error}",
            hint="The file is damaged or was made by a broken converter; fetch it again",
            param="tokenizer.ggml.merges",
        ) from error


def _post_process(tokenizer: Any, fields: GgufTokenizer, add_bos: bool) -> None:
    """With a begin token: it is put before each text, once. Without one the text stays as it is."""
    bos = fields.spelling(fields.bos)
    if not add_bos or bos is None:
        return
    try:
        if bos.startswith("$"):  # would be read as a place for text
            raise ValueError("its spelling begins with $")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, fields.bos)]
        )
    except ValueError as error:
        raise ImportFailed(
            f"the begin token {bos!r} cannot be put before a text: {error}",
            hint="Import the model's Hugging Face folder, which brings its own tokenizer.json",
            param="tokenizer.ggml.bos_token_id",
        ) from error
