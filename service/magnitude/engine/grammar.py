"""Constrained output: which tokens may come next so that the output matches a grammar.

llguidance does the work; this file feeds it our tokenizer and turns its bit masks into NumPy masks. The state
follows from the grammar and the emitted ids alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from magnitude.engine.protocol import GrammarSpec
from magnitude.engine.sampling import Mask
from magnitude.errors import ModelError, RequestError

# A grammar arrives with a request, so it may be hostile. Beyond these it is refused instead of holding up every
# other generation: text far beyond any hand-written schema, and about a tenth of llguidance's own limits,
# which stand for a second of work and half a gigabyte of lexer states.
MAX_GRAMMAR_BYTES = 256 * 1024
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_lexer_states": 25_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,  # the verbose form repeats the grammar and the output, which do not belong in logs
}


# At most one blank or line break where JSON allows any number: a small model at temperature 0 otherwise fills
# its whole answer with white space.
_JSON_OPTIONS: dict[str, Any] = {"whitespace_pattern": r"[\x20\x0A]?"}


@contextmanager
def _panics_refused() -> Iterator[None]:
    """A panic inside llguidance arrives as a `BaseException` that no `except Exception` sees: make it an error
    of this one request."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise _invalid("the grammar library failed on it") from error
        raise


def _invalid(message: str) -> RequestError:
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return RequestError(
        f"the grammar cannot be used: {' | '.join(lines)}"[:1000],
        code="invalid_grammar",
        param="response_format",
        hint="Correct or simplify the schema, regular expression or grammar",
    )


class GrammarTokenizer:
    """A model's vocabulary as llguidance needs it; built once a model.

    `tokenizer_json` is the text of `tokenizer.json`; `vocab_size` the width of the logits, which may be larger
    than the tokenizer's vocabulary (padding ids are never allowed). Raises `ModelError` when the tokenizer is of
    a kind that llguidance does not know.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos: Iterable[int]) -> None:
        eos_ids = list(eos)
        self.vocab_size = vocab_size
        try:
            if not eos_ids:  # llguidance would take id 0 for the end token
                raise ValueError("the model names no end token")
            with _panics_refused():
                # No slices: these precomputed masks cost 15 MB for 49,152 tokens and brought the slowest mask of
                # a schema from 0.7 to 0.2 ms, the median not at all.
                self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=eos_ids, slices=[])
        except (ValueError, RequestError) as error:
            raise ModelError(
                f"constrained output is not possible with this model's tokenizer: {error}",
                code="grammar_unsupported",
                hint="Send the request without response_format and tools, or use another model",
            ) from error

    def start(self, spec: GrammarSpec, emitted: Iterable[int] = ()) -> Grammar:
        """A grammar's state after `emitted`. Raises `RequestError` `invalid_grammar`."""
        if len(spec.text) > MAX_GRAMMAR_BYTES:
            raise _invalid(f"it has {len(spec.text)} characters, the limit is {MAX_GRAMMAR_BYTES}")
        try:
            with _panics_refused():
                match spec.kind:
                    case "json_schema":
                        text = LLMatcher.grammar_from_json_schema(spec.text, _JSON_OPTIONS)
                    case "regex":
                        text = LLMatcher.grammar_from_regex(spec.text)
                    case "lark":
                        text = LLMatcher.grammar_from_lark(spec.text)
                matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LLParserLimits(**_LIMITS))
        except (ValueError, RecursionError) as error:
            raise _invalid(str(error)) from error
        grammar = Grammar(matcher, self.vocab_size)
        grammar.check()
        for token in emitted:
            grammar.accept(token)
        return grammar


class Grammar:
    """The state of one generation's grammar: `allowed` before a choice, `accept` after it."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._bits = np.zeros(-(-vocab_size // 32), np.int32)

    @property
    def complete(self) -> bool:
        """Nothing may follow: the output matches and cannot be continued."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> Mask:
        """True for each id that may come next, `[vocab_size]`. Raises `RequestError` when limits are hit."""
        with _panics_refused():
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self.check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def forced(self) -> list[int]:
        """Ids that spell what must come next, such as the name of a key; empty where there is a choice.

        Other ids may spell the same text, so the model may still choose those.
        """
        with _panics_refused():
            forced: list[int] = self._matcher.compute_ff_tokens()
        return forced

    def matching(self, ids: list[int]) -> int:
        """How many of `ids`, from the first on, may come next one after the other."""
        with _panics_refused():
            count: int = self._matcher.validate_tokens(ids)
        return count

    def accept(self, token: int) -> None:
        """The output goes on with `token`. Raises `RequestError` when it does not match."""
        with _panics_refused():
            accepted = self._matcher.consume_token(token)
        if not accepted:
            self.check()
            raise _invalid(f"token {token} does not continue the output")

    def check(self) -> None:
        if self._matcher.is_error():
            raise _invalid(self._matcher.get_error())
