"""Text to token ids and back, for one model.

Two kinds of text are kept apart. Text that the model's own template wrote may hold control tokens (`<|im_end|>`,
`<s>`): there they are meant. Text from a client never may: a control string in it is cut in two before it is
encoded, so that it stays ordinary characters. Nothing is lost by the cut: the pieces decode to the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from magnitude.errors import ModelError, RequestError
from magnitude.models.description import SpecialTokens
from magnitude.text.token_bytes import token_bytes

# Written before a piece that goes on in the middle of a text, and taken off again as ids: tokenizers of the
# SentencePiece kind put a space mark before every text they see, which must not appear inside a word.
_ANCHOR = "\n"

_NO_CHARACTER = "\ufdd0"  # set aside by Unicode as no character at all

# A marker that a vocabulary lists as an ordinary added token, but that templates and parsers read as structure
# (`<think>`, `<tool_call>`, `<|end|>`, `[INST]`).
_MARKER_SHAPE = re.compile(r"^(<[^<>\s]+>|\[[A-Z_/ ]+\])$")


class EncodedPair(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of an encoder's input with its special tokens, and the segment of each."""

    ids: list[int]
    token_types: list[int]
    truncated_tokens: int = 0


class _Frame(msgspec.Struct, frozen=True):
    """Special tokens that the tokenizer's post-processor puts around one text, or around two."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    types: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)  # of before, first, between, second, after


class TextTokenizer:
    """A model's `tokenizer.json`. Safe to use from several threads: nothing in it changes after loading."""

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        # A tokenizer file may come with a fixed padding or truncation (MiniLM: 128). How long a text may be is
        # decided by the request and by the model, never silently here.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special = special
        added: dict[int, Any] = tokenizer.get_added_tokens_decoder()
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        named = {i for i in (special.bos, special.pad, *special.eos) if i is not None}
        self.special_ids: frozenset[int] = frozenset(i for i, t in added.items() if t.special) | named
        # Only added tokens are found in a text as a whole; a model may end with an ordinary token (a line break),
        # which is none to keep clients from. One character cannot be cut in two.
        unknown = self._unknown_id()
        control = {
            i: bool(t.special)
            for i, t in added.items()
            if i != unknown and len(t.content) > 1 and (t.special or _MARKER_SHAPE.match(t.content))
        }
        self._control_ids = frozenset(control)
        # The text of the unknown token is cut as well, but its id is what unknown characters honestly get.
        unknown_text = {added[unknown].content} if unknown is not None and unknown in added else set()
        strings = {added[i].content for i in control} | unknown_text
        strong = {added[i].content for i, special in control.items() if special} | unknown_text
        self._control = _alternation(strings)
        self._strong_control = _alternation(strong)
        self._tails = frozenset(s[:n] for s in strings for n in range(1, len(s)))
        self._longest_tail = max((len(t) for t in self._tails), default=0)
        self._anchor_ids: list[int] = self._encode_raw(_ANCHOR)
        self._single = self._frame_of_one()
        self._pair = self._frame_of_two()

    @classmethod
    def load(cls, path: Path, special: SpecialTokens) -> TextTokenizer:
        """Read a `tokenizer.json`. Raises `ModelError` when it is missing or cannot be read."""
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for every kind of failure
            raise ModelError(
                f"The tokenizer {path} cannot be read: {error}",
                hint="Import the model again; a model folder needs its tokenizer.json.",
                param=str(path),
            ) from error
        return cls(tokenizer, special)

    # --- facts about the vocabulary ---

    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of `token` ("" for an id that it does not have)."""
        return self._tokenizer.id_to_token(token) or ""

    def token_id(self, text: str) -> int | None:
        """The id of the vocabulary entry spelled `text`."""
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for, also when they are only a part of a character."""
        text = self.token_text(token)
        if token in self._control_ids:
            return text.encode()
        return token_bytes(text, lambda: self.decode([token]))

    @property
    def bos_text(self) -> str:
        return "" if self.special.bos is None else self.token_text(self.special.bos)

    @property
    def eos_text(self) -> str:
        return self.token_text(self.special.eos[0]) if self.special.eos else ""

    # --- encoding ---

    def encode_text(self, text: str) -> list[int]:
        """Ids of a client's text, without any special token. Control strings in it stay plain text."""
        ids: list[int] = []
        for number, piece in enumerate(self.cut(text)):
            part = self._encode_piece(piece, first=number == 0)
            if not self._control_ids.isdisjoint(part):
                # Normalisation made a control string out of other characters (full-width brackets).
                part = [i for n, char in enumerate(piece) for i in self._encode_piece(char, first=number + n == 0)]
                part = [i for i in part if i not in self._control_ids]
            ids += part
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw completion prompt: the client is its own template, so control strings count.

        Exactly one begin token where the model wants one, whether or not the text brings it.
        """
        return self._with_begin_token(self._encode_raw(text))

    def encode_rendered(self, pieces: Sequence[str]) -> list[int]:
        """Ids of a rendered template, given as the pieces between the cuts in client text (see `cut`).

        Raises `RequestError` when client text turned into a control token in spite of the cuts.
        """
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            part = self._encode_piece(piece, first=number == 0)
            meant = len(self._control.findall(piece)) if self._control else 0
            if sum(i in self._control_ids for i in part) > meant:
                raise RequestError(
                    "A message holds text that this model's tokenizer would read as a control token",
                    hint="Remove full-width or otherwise unusual brackets around names of control tokens.",
                    param="messages",
                )
            ids += part
        return self._with_begin_token(ids)

    def encode_single(self, text: str, *, limit: int | None = None) -> EncodedPair:
        """Ids of an encoder's input with the special tokens of its post-processor (CLS, SEP).

        With a `limit` the text is cut so that the whole fits; `truncated_tokens` says by how much.
        """
        return self.frame_single(self.encode_text(text), limit=limit)

    def frame_single(self, body: list[int], *, limit: int | None = None) -> EncodedPair:
        """Like `encode_single`, for ids that a client encoded itself (without special tokens)."""
        frame = self._single
        over = 0 if limit is None else max(0, len(body) + len(frame.before) + len(frame.after) - limit)
        body = body[: max(0, len(body) - over)]
        ids = [*frame.before, *body, *frame.after]
        return EncodedPair(ids=ids, token_types=[0] * len(ids), truncated_tokens=over)

    def encode_pair(self, first: str, second: str, *, limit: int | None = None) -> EncodedPair:
        """Ids of two texts with the special tokens around and between them.

        With a `limit` the second text is cut so that the whole fits; the first never is.
        """
        frame, head, tail = self._pair, self.encode_text(first), self.encode_text(second)
        fixed = len(frame.before) + len(head) + len(frame.between) + len(frame.after)
        over = 0 if limit is None else min(len(tail), max(0, fixed + len(tail) - limit))
        tail = tail[: len(tail) - over]
        parts = (frame.before, head, frame.between, tail, frame.after)
        return EncodedPair(
            ids=[i for part in parts for i in part],
            token_types=[kind for part, kind in zip(parts, frame.types, strict=True) for _ in part],
            truncated_tokens=over,
        )

    def cut(self, text: str, *, strong_only: bool = False) -> list[str]:
        """`text` in pieces, cut inside every control string, so that no piece holds one.

        `strong_only` leaves format markers such as `</think>` whole: templates look for them in the model's own
        earlier answers.
        """
        pattern = self._strong_control if strong_only else self._control
        return list(_cut(text, pattern))

    def ends_like_control(self, text: str) -> bool:
        """Whether `text` ends with the beginning of a control string, which the next text could complete."""
        return any(text[-n:] in self._tails for n in range(1, min(self._longest_tail, len(text)) + 1))

    # --- decoding ---

    def decode(self, ids: Sequence[int], *, skip: Iterable[int] | None = None) -> str:
        """Text of `ids` in one go, without special tokens (or without the ids in `skip`)."""
        hidden = self.special_ids if skip is None else frozenset(skip)
        text: str = self._tokenizer.decode([i for i in ids if i not in hidden], skip_special_tokens=False)
        return text

    # --- inside ---

    def trim(self) -> None:
        """Drop the words that it has met before; they are split anew."""
        # Of the models only those that look words up keep a cache, and only some releases let it be cleared.
        clear = getattr(self._tokenizer.model, "_clear_cache", None)
        if clear is not None:
            clear()

    def _encode_raw(self, text: str) -> list[int]:
        # The batch call releases the interpreter lock while it works, the plain one does not: a long text must
        # not hold up the event loop.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _encode_piece(self, piece: str, *, first: bool) -> list[int]:
        if first or not self._anchor_ids:
            return self._encode_raw(piece)
        ids = self._encode_raw(_ANCHOR + piece)
        n = len(self._anchor_ids)
        return ids[n:] if ids[:n] == self._anchor_ids else self._encode_raw(piece)

    def _with_begin_token(self, ids: list[int]) -> list[int]:
        bos = self.special.bos
        if bos is None:
            return ids
        start = 0
        while start < len(ids) and ids[start] == bos:
            start += 1
        if start == 0 and not self.special.add_bos:
            return ids
        return [bos, *ids[start:]]

    def _unknown_id(self) -> int | None:
        """What characters outside the vocabulary become; None where bytes stand in for them."""
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        if unknown is not None:
            return self.token_id(unknown)
        # Models of the Unigram kind do not name it, but show it for a character that no vocabulary has.
        ids = self._encode_raw(_NO_CHARACTER)
        return ids[-1] if ids and self.token_text(ids[-1]).startswith("<unk") else None

    def _two_probes(self) -> tuple[str, str]:
        """Two texts that have tokens, to see what is put around texts: letters, or what the vocabulary has instead;
        empty texts where it has nothing."""
        if self._encode_raw("a") and self._encode_raw("b"):
            return "a", "b"
        ordinary = (
            text
            for token in range(self.vocab_size)
            if token not in self.special_ids and (text := self.token_text(token)) and self._encode_raw(text)
        )
        first = next(ordinary, "")
        return first, next(ordinary, first)

    def _frame_of_one(self) -> _Frame:
        text, _ = self._two_probes()
        plain = self._encode_raw(text)
        framed: list[int] = self._tokenizer.encode(text, add_special_tokens=True).ids
        at = _find(framed, plain) if plain else None
        if at is None:
            return _Frame()
        return _Frame(before=tuple(framed[:at]), after=tuple(framed[at + len(plain) :]))

    def _frame_of_two(self) -> _Frame:
        texts = self._two_probes()
        first, second = map(self._encode_raw, texts)
        framed = self._tokenizer.encode(*texts, add_special_tokens=True)
        ids: list[int] = framed.ids
        types: list[int] = framed.type_ids
        at = _find(ids, first) if first else None
        then = None if at is None else _find(ids, second, at + len(first))
        if at is None or then is None:
            return _Frame()
        middle, end = at + len(first), then + len(second)
        return _Frame(
            before=tuple(ids[:at]),
            between=tuple(ids[middle:then]),
            after=tuple(ids[end:]),
            types=(
                types[0],
                types[at],
                types[middle] if then > middle else types[at],
                types[then],
                types[-1],
            ),
        )


def _alternation(strings: set[str]) -> re.Pattern[str] | None:
    longest_first = sorted((s for s in strings if s), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _cut(text: str, pattern: re.Pattern[str] | None) -> Iterator[str]:
    start = 0
    while pattern is not None and (found := pattern.search(text, start)):
        middle = found.start() + (found.end() - found.start()) // 2
        # The first half may itself hold a shorter control string.
        yield from _cut(text[start:middle], pattern)
        # The rest is searched from the cut: what remains of this string may be the start of another.
        start = middle
    yield text[start:]


def _find(haystack: Sequence[int], needle: Sequence[int], start: int = 0) -> int | None:
    for at in range(start, len(haystack) - len(needle) + 1):
        if list(haystack[at : at + len(needle)]) == list(needle):
            return at
    return None
