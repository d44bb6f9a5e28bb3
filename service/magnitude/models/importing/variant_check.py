"""Is what was imported a variant of its parent? The same text must become the same tokens, and the same tokens nearly
the same results."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from magnitude.errors import ImportFailed
from magnitude.models.description import DecoderShape, EncoderShape, ModelDescription
from magnitude.models.golden import Agreement, GoldenVector, agreement, log_softmax, merged
from magnitude.models.importing.golden_texts import golden_ids
from magnitude.models.importing.graph_runner import DecoderRunner, EncoderRunner
from magnitude.models.importing.verify_decoder import Texts, clear_prompts
from magnitude.models.importing.verify_encoder import GOLDEN_TOKENS
from magnitude.models.manifest import MANIFEST_FILE, Verification, read_manifest
from magnitude.models.parent_golden import (
    PARENT_GOLDEN_VERSION,
    Logprobs,
    ParentGolden,
    compare_prompts,
    compare_vectors,
    parent_prompt,
    vectors_beside,
    write_parent_golden,
)
from magnitude.models.tokenizers.parts import TokenizerParts
from magnitude.models.tolerance import Nearness, Tolerance, outside
from magnitude.models.untrusted import TEMPLATE_MAX_BYTES, TOKENIZER_MAX_BYTES, read_text_capped

_OTHER_MODEL = "A variant is made of the same model: of the same weights, in another precision"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How the variant stands beside its parent. `outside`: why it is not within the tolerance, "" when it is."""

    verification: tuple[Verification, ...]
    outside: str


def check_text(parts: TokenizerParts, parent: ModelDescription, texts: Texts) -> None:
    """Raises `ImportFailed` unless tokenizer, special tokens and chat template are the parent's: requests are
    rendered and tokenised once, whoever computes them. `texts` are the golden texts by `parts`."""
    folder = Path(parent.folder)
    problems = []
    if parent.tokenizer_file is None:
        raise ImportFailed(f"{parent.name} has no tokenizer, so it can have no variants", hint=_OTHER_MODEL)
    theirs = read_text_capped(folder / parent.tokenizer_file, TOKENIZER_MAX_BYTES, what="tokenizer")
    if theirs != parts.tokenizer_json and (
        golden_ids(theirs) != texts or _vocabulary(theirs) != _vocabulary(parts.tokenizer_json)
    ):
        problems.append("the tokenizer")
    mine, its = parts.special, parent.special
    if (mine.bos, mine.eos, mine.add_bos) != (its.bos, its.eos, its.add_bos):
        problems.append("begin and end tokens")
    if parent.kind == "decoder" and not _same_template(parts.chat_template, parent):
        problems.append("the chat template")
    if problems:
        raise ImportFailed(
            f"this cannot be a variant of {parent.name}: {' and '.join(problems)} differ",
            hint=_OTHER_MODEL,
            param="variant-of",
        )


def check_shape(
    decoder: DecoderShape | None, encoder: EncoderShape | None, parent: ModelDescription, the_hash: str
) -> None:
    """Raises `ImportFailed` where results could not stand for the parent's, or are the parent's own."""
    problem = ""
    if the_hash == parent.model_hash:
        problem = "it is the same graph with the same weights"
    elif decoder is not None and parent.decoder is not None:
        if decoder.vocab_size != parent.decoder.vocab_size:
            problem = f"it has {decoder.vocab_size} logits, not {parent.decoder.vocab_size}"
        elif decoder.context_length < parent.decoder.context_length:
            problem = f"its context is {decoder.context_length}, not {parent.decoder.context_length}"
    elif encoder is not None and parent.encoder is not None:
        mine, its = encoder, parent.encoder
        if (mine.width, mine.token_type_ids, mine.normalised) != (its.width, its.token_type_ids, its.normalised):
            problem = f"its vectors have {mine.width} numbers or are normalised in another way"
        elif mine.max_tokens < its.max_tokens:
            problem = f"its texts may have {mine.max_tokens} tokens, not {its.max_tokens}"
    else:
        problem = f"it is not of the kind {parent.kind}"
    if problem:
        raise ImportFailed(
            f"this cannot be a variant of {parent.name}: {problem}", hint=_OTHER_MODEL, param="variant-of"
        )


def stand_beside(
    graph: Path,
    shape: DecoderShape | EncoderShape,
    parent: ModelDescription,
    texts: Texts,
    tolerance: Tolerance,
) -> Standing:
    """Compare the finished variant's `graph` with its parent over `texts`, and write beside it the
    set that does it again on a board. Raises `ImportFailed` where the parent cannot be compared with."""
    if isinstance(shape, DecoderShape):
        return _decoder_beside(graph, shape, parent, texts, tolerance)
    return _encoder_beside(graph, shape, parent, texts, tolerance)


def _decoder_beside(
    graph: Path,
    shape: DecoderShape,
    parent: ModelDescription,
    texts: Texts,
    tolerance: Tolerance,
) -> Standing:
    assert parent.decoder is not None
    if parent.decoder.logit_rows is None and not parent.decoder.logits_all_positions:
        raise ImportFailed(
            f"{parent.name} gives the logits of its last position only, so nothing can be compared with it",
            hint="Import the parent from its weights (GGUF or safetensors), then its variants",
        )
    mine = DecoderRunner(graph, shape)
    theirs = DecoderRunner(Path(parent.folder) / parent.graph_file, parent.decoder)
    parts: list[Agreement] = [agreement(theirs.logits(ids), mine.logits(ids)) for ids in texts]
    found = merged(parts)
    # A model that is nowhere sure of the next token is asked all the same: better near ties than nothing.
    prompts = clear_prompts(theirs.logits, texts) or [ids[:GOLDEN_TOKENS] for ids in texts]
    golden = ParentGolden(
        version=PARENT_GOLDEN_VERSION,
        parent_hash=parent.model_hash,
        prompts=[parent_prompt(ids, theirs.logits(ids)[-1]) for ids in prompts],
    )
    write_parent_golden(graph.parent, golden)

    def logprobs(ids: list[int]) -> Logprobs:
        return dict(enumerate(log_softmax(mine.logits(ids)[-1]).tolist()))

    again = compare_prompts(golden, logprobs)
    figures = (
        ("over the golden texts", found.tokens, Nearness(top1_agreement=found.top1, kl_nats=found.kl_nats)),
        ("after the prompts that a board runs", len(golden.prompts), again),
    )
    return _standing(parent, tolerance, figures)


def _encoder_beside(
    graph: Path,
    shape: EncoderShape,
    parent: ModelDescription,
    texts: Texts,
    tolerance: Tolerance,
) -> Standing:
    assert parent.encoder is not None
    mine = EncoderRunner(graph, shape)
    theirs = EncoderRunner(Path(parent.folder) / parent.graph_file, parent.encoder)
    longest = parent.encoder.max_tokens
    whole = vectors_beside((theirs.vector(ids[:longest]), mine.vector(ids[:longest])) for ids in texts)
    shorts = [ids[:GOLDEN_TOKENS] for ids in texts]
    golden = ParentGolden(
        version=PARENT_GOLDEN_VERSION,
        parent_hash=parent.model_hash,
        vectors=[GoldenVector(ids=ids, vector=[round(float(v), 6) for v in theirs.vector(ids)]) for ids in shorts],
    )
    write_parent_golden(graph.parent, golden)
    figures = [
        ("over the golden texts", sum(map(len, texts)), whole),
        ("over the beginnings that a board runs", sum(map(len, shorts)), compare_vectors(golden, mine.vector)),
    ]
    return _standing(parent, tolerance, figures)


def _standing(
    parent: ModelDescription, tolerance: Tolerance, figures: Sequence[tuple[str, int, Nearness]]
) -> Standing:
    entries, reasons = [], []
    for graph, tokens, found in figures:
        reason = outside(tolerance, found)
        if reason:
            reasons.append(f"{reason} {graph}")
        entries.append(
            Verification(
                reference=f"{parent.name} ({parent.precision or 'its own weights'})",
                graph=f"this variant, {graph}",
                tokens=tokens,
                top1_agreement=_rounded(found.top1_agreement, 4),
                kl_nats=_rounded(found.kl_nats, 6),
                cosine=_rounded(found.cosine, 6),
                passed=not reason,
            )
        )
    return Standing(verification=tuple(entries), outside="; ".join(reasons))


def _rounded(figure: float | None, digits: int) -> float | None:
    return None if figure is None else round(figure, digits)


def _vocabulary(tokenizer_json: str) -> dict[str, int]:
    from tokenizers import Tokenizer

    found: dict[str, int] = Tokenizer.from_str(tokenizer_json).get_vocab()
    return found


def _same_template(template: str | None, parent: ModelDescription) -> bool:
    """As the parent's is now, or as it was imported: it is there to be edited, and the parent's counts."""
    if parent.chat_template_file is None or template is None:
        return parent.chat_template_file is None and template is None
    folder = Path(parent.folder)
    if read_text_capped(folder / parent.chat_template_file, TEMPLATE_MAX_BYTES, what="chat template") == template:
        return True
    if not (folder / MANIFEST_FILE).is_file():
        return False
    imported = read_manifest(folder).files.get(parent.chat_template_file)
    return imported is not None and imported.sha256 == hashlib.sha256(template.encode()).hexdigest()
