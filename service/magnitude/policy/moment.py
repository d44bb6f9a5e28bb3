"""One moment as the strategy loop sees it: the board, the load, and what follows for the keys of situations."""

from __future__ import annotations

import msgspec

from magnitude.policy.situation import Part, Situation, clockless, fields_of, key_of
from magnitude.policy.terms import BoardSeen, LoadSeen

# While answers run, prompts enter in pieces of so many tokens or fewer (`engine.max_inter_token_ms`).
PIECE_BESIDE_ANSWERS = 32
# All texts of an encoder are one kind of work: costs are those of a position.
ENCODED_TOKENS = 64


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """`idle_s` is how long nothing has been open (0: something is), `cold` whether the model has not run for long
    enough to try anything. Prompts enter in pieces of `chunk` tokens while nothing else runs."""

    now_s: float
    board: BoardSeen
    load: LoadSeen
    chunk: int = 128
    idle_s: float = 0.0
    cold: bool = False

    @property
    def idle(self) -> bool:
        return not (self.load.decoding or self.load.entering or self.load.waiting)

    def situation(self, *, rows: int, tokens: int) -> Situation:
        board = self.board
        return Situation(
            tokens=max(1, tokens),
            rows=max(1, rows),
            queue=self.load.waiting,
            cores=max(1, board.usable),
            heat=board.heat,
            clock_share=board.clock_share,
            memory=board.memory,
            supply=board.supply,
        )

    def key_now(self, part: Part) -> str:
        """The key of a part for what is open now (at rest: for what comes first)."""
        if part == "decode":
            return self.key(part, rows=max(1, self.load.decoding))
        return self.key(part, tokens=self.tokens_of(part, PIECE_BESIDE_ANSWERS if self.load.decoding else self.chunk))

    def tokens_of(self, part: Part, tokens: int) -> int:
        """What runs of so many tokens count as: pieces of a prompt are small ones, beside answers, or whole ones; all
        texts are alike."""
        if part == "prefill":
            return PIECE_BESIDE_ANSWERS if tokens <= PIECE_BESIDE_ANSWERS else self.chunk
        return ENCODED_TOKENS

    def key(self, part: Part, *, rows: int = 1, tokens: int = 1) -> str:
        return key_of(part, self.situation(rows=rows, tokens=tokens))

    def same_work(self, key: str) -> Situation:
        """The situation of `key`'s rows and tokens, on the board as it is now."""
        fields = fields_of(key)
        return self.situation(rows=int(float(fields.get("rows", "1"))), tokens=int(float(fields.get("tokens", "1"))))

    def holds(self, part: Part, key: str) -> bool:
        """Whether the board is now as `key` says, at whatever clock: what is compared side by side is a ratio, and a
        board that gets hot does not stay at one clock for as long as a comparison takes."""
        return clockless(key_of(part, self.same_work(key))) == clockless(key)

    @property
    def calm(self) -> bool:
        """Whether the board can bear an experiment."""
        board = self.board
        return board.heat != "hot" and board.supply == "full" and board.memory == "ample"
