"""What has been learned about one model on one board: plain data, as it is dumped, shown, exported and trained on."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.situation import Part
from magnitude.policy.strategy import Strategy

# Raised whenever what was learned before must not be read as the same thing any more.
SCHEMA = 1

Origin = Literal["measured", "tuned", "trained", "imported", "pinned"]


class Choice(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What may be chosen for one part. `chunk` is the piece of a prompt (prefill only), `variant` the model folder
    whose weights are used (variant only, "": the model's own)."""

    session: SessionSpec | None = None
    chunk: int = 0
    variant: str = ""

    @property
    def choice_id(self) -> str:
        """As tables and logs name it."""
        if self.session is None:
            return self.variant or "own weights"
        return f"{self.session.session_id}, pieces of {self.chunk}" if self.chunk else self.session.session_id


def parts_of(strategy: Strategy) -> dict[Part, Choice]:
    """What a strategy chooses for each part."""
    return {
        "decode": Choice(session=strategy.decode),
        "prefill": Choice(session=strategy.prefill, chunk=strategy.prefill_chunk),
        "encode": Choice(session=strategy.prefill),
        "variant": Choice(variant=strategy.variant),
    }


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one choice in one situation. `cost_s` is seconds for a unit of work (a step, a token, a
    position, a task), `log_spread` the standard deviation of its logarithm, `weight` the samples behind it after
    ageing, `p95_s` their 95th percentile. `failed` is the share of tasks that failed (told by records only)."""

    choice: Choice
    cost_s: float
    log_spread: float = 0.0
    p95_s: float = 0.0
    weight: float = 0.0
    failed: float = 0.0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: in the situation `key`, `chosen` is the best choice known for `part`."""

    part: Part
    key: str
    chosen: Choice
    origin: Origin = "measured"
    evidence: tuple[Evidence, ...] = ()

    def evidence_of(self, choice: Choice) -> Evidence | None:
        return next((one for one in self.evidence if one.choice == choice), None)


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that is not to be tried again in that situation ("": in any), and why."""

    part: Part
    key: str
    choice: Choice
    reason: str


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """What the figures hold for. Any other value retires them."""

    board: str
    model: str
    model_hash: str
    ort_version: str
    kernel_version: str = ""  # of the operator library; "": ONNX Runtime's own operators
    cpu_features: tuple[str, ...] = ()


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose results were compared with those of the model's own, on the golden set."""

    session: SessionSpec
    passed: bool
    equal: bool  # to the bit
    largest_difference: float = 0.0  # of logits
    top1_agreement: float = 1.0
    reason: str = ""


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    binding: Binding
    entries: tuple[Entry, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    verified: tuple[Verified, ...] = ()
    samples: int = 0  # that went into it, over all runs of the service
    saved_at_s: float = 0.0  # wall clock, for people only
