"""What the thermal governor asks for, in the words of a decision. Pure."""

from __future__ import annotations

from magnitude.governor.decision import Decision
from magnitude.governor.thermal_terms import Announce, Effect, SetCaps, SetConcurrency, SetDuty, SetThreads
from magnitude.governor.wanted import in_words


def decision_of(effect: Effect) -> Decision:
    """What the effect asks for, with its reason."""
    reason = effect.reason
    match effect:
        case SetCaps(caps_khz):
            return Decision(source="thermal", kind="caps", what=f"clocks: {in_words(caps_khz)}", reason=reason)
        case SetDuty(share):
            return Decision(source="thermal", kind="duty", what=f"computes {share:.0%} of the time", reason=reason)
        case SetThreads(prefill, decode):
            what = f"wishes for {_number(prefill)} threads for prompts, {_number(decode)} for answers"
            return Decision(source="thermal", kind="threads", what=what, reason=reason)
        case SetConcurrency(limit):
            what = f"generations at once: {_number(limit)}"
            return Decision(source="thermal", kind="concurrency", what=what, reason=reason)
        case Announce(state, before):
            return Decision(source="thermal", kind="state", what=f"{before} to {state}", reason=reason)
        case _:
            what = "wishes for a smaller variant" if effect.on else "needs no smaller variant any more"
            return Decision(source="thermal", kind="smaller", what=what, reason=reason)


def _number(value: int | None) -> str:
    return "as planned" if value is None else str(value)
