"""Speculation of one generation: where drafts come from, and whether one is worth its run.

Verification needs no rule of its own. The sampler's noise belongs to the position (`sampling.py`), so the token that
plain decoding draws at a position is a function of the logits there, and drafts are only guesses of it. A run gives
the logits behind every drafted token, the ordinary sampler draws along them, and from the first token on that was
drafted differently the draft is dropped. A draft that does not depend on the noise is so accepted with exactly the
probability that the target gives it: rejection sampling, with the distribution of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from magnitude.engine.draft_control import BY_MODEL, FORCED, DraftControl, DraftCosts
from magnitude.engine.draft_model import DraftModel, DraftStream
from magnitude.engine.prompt_lookup import PromptLookup

if TYPE_CHECKING:
    from magnitude.engine.grammar import Grammar


class Draft(msgspec.Struct, frozen=True):
    """Guessed next tokens, and what the guess rests on (`DraftControl`)."""

    ids: list[int]
    strength: int


class Speculation:
    """Drafts for one generation of a model.

    `costs` and `model` (None: no draft model) are shared by the generations of that model. Drafts have at most `most`
    tokens. `drafted` and `accepted` count tokens.
    """

    def __init__(self, costs: DraftCosts, most: int, model: DraftModel | None = None) -> None:
        self.drafted = self.accepted = 0
        self._verified: tuple[Draft, int] | None = None  # the last one, whose time is not told yet
        self._most = most
        self._costs = costs
        self._control = DraftControl(costs)
        self._lookup = PromptLookup()
        self._model = model
        self._stream: DraftStream | None = None

    def draft(self, ids: Sequence[int], room: int, rows: int, grammar: Grammar | None = None) -> Draft | None:
        """A draft of at most `room` tokens that continues `ids`; None where plain decoding is better.

        `ids` begin with those of the call before. `rows` generations decode. A `grammar` that has taken in the output
        so far drafts what it leaves no choice about, and stops drafts where it would stop the output.
        """
        most = min(self._most, room)
        if most < 1:
            return None
        draft = self._forced(grammar, most, rows) if grammar is not None else None
        draft = draft or self._repeated(ids, most, rows) or self._by_model(ids, most, rows)
        if draft is None or grammar is None:
            return draft
        allowed = draft.ids[: grammar.matching(draft.ids)]
        return Draft(allowed, draft.strength) if allowed else None

    def _forced(self, grammar: Grammar, most: int, rows: int) -> Draft | None:
        forced = grammar.forced()[:most]
        count = self._control.length(FORCED, len(forced), rows)
        return Draft(forced[:count], FORCED) if count else None

    def _repeated(self, ids: Sequence[int], most: int, rows: int) -> Draft | None:
        self._lookup.extend(ids[len(self._lookup) :])
        match = self._lookup.match()
        count = self._control.length(match.tokens, most, rows) if match is not None else 0
        return Draft(self._lookup.following(match, count), match.tokens) if match is not None and count else None

    def _by_model(self, ids: Sequence[int], most: int, rows: int) -> Draft | None:
        if self._model is None:
            return None
        count = self._control.length(BY_MODEL, most, rows, self._model.token_s)
        if not count:
            return None
        if self._stream is None:
            self._stream = self._model.open_stream()
            if self._stream is None:
                return None
        drafted = self._stream.propose(ids, count)
        return Draft(drafted, BY_MODEL) if drafted else None

    def plain_step(self) -> None:
        """The generation took part in a step without a draft."""
        self._control.plain_step()

    def count(self, draft: Draft, accepted: int) -> None:
        """`draft` was verified, and `accepted` of its tokens stood."""
        self.drafted += len(draft.ids)
        self.accepted += accepted
        self._verified = draft, accepted

    def took(self, rows: int, run_s: float) -> None:
        """The verification that was counted last took `run_s` while `rows` generations decoded."""
        if self._verified is None:
            return
        draft, accepted = self._verified
        self._verified = None
        self._costs.observe_verify(len(draft.ids) + 1, run_s)
        draft_s = self._model.token_s if self._model is not None and draft.strength == BY_MODEL else 0.0
        self._control.verified(draft.strength, len(draft.ids), accepted, rows, run_s=run_s, draft_s=draft_s)

    def close(self) -> None:
        """Give back the place in the draft model. Safe to call twice."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
