"""On what terms a request is served: who goes first, until when, and what of it may be kept.

They come as headers, so that any client can send them without a change of its bodies. Every one is checked; one
that cannot be meant is refused and never guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request

from magnitude.errors import RequestError
from magnitude.intake.context import passage_of
from magnitude.schedule.inference import Deadline, Priority

PRIORITY = "X-Magnitude-Priority"
DEADLINE_MS = "X-Magnitude-Deadline-Ms"
DEADLINE_MODE = "X-Magnitude-Deadline-Mode"
MAY_CUT = "X-Magnitude-May-Cut"
CONVERSATION = "X-Magnitude-Conversation"
EXPECT = "X-Magnitude-Expect"
TASK = "X-Magnitude-Task"
KEEP = "X-Magnitude-Keep"

MAX_DEADLINE_MS = 24 * 3600 * 1000  # a day; longer ones are units mixed up
MAX_EXPECTED = 1024  # as KV slots can be configured at most (kv.slots)
CONVERSATION_PATTERN = r"[!-~]{1,128}"  # a UUID, a trace id, a path: visible ASCII
TASK_PATTERN = r"[a-z0-9][a-z0-9_.-]{0,31}"  # becomes a name among the figures
_CUTS: tuple[Literal["tokens", "model"], ...] = ("tokens", "model")

Value = TypeVar("Value")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one request. `deadline` counts from the request's arrival. `task` is the kind of task."""

    priority: Priority = "normal"
    deadline: Deadline | None = None
    conversation: str = ""
    expect: int = 0
    task: str
    keep: bool = True


def terms_of(request: Request, *, task: str) -> Terms:
    """The terms of `request`; `task` is its kind when it names none. Raises `RequestError` naming the header."""
    terms = read_terms(request.headers, arrived_s=passage_of(request).started_s, task=task)
    notes = passage_of(request).notes
    notes["task"] = terms.task
    if terms.priority != "normal":
        notes["priority"] = terms.priority
    return terms


def read_terms(headers: Headers, *, arrived_s: float, task: str) -> Terms:
    """The terms that `headers` ask for. `arrived_s`: when the request arrived, monotonic."""
    return Terms(
        priority=_choice(headers, PRIORITY, ("interactive", "normal", "background"), "normal"),
        deadline=_deadline(headers, arrived_s),
        conversation=_read(headers, CONVERSATION, "", _conversation),
        expect=_read(headers, EXPECT, 0, lambda text: _whole(EXPECT, text, low=0, high=MAX_EXPECTED)),
        task=_read(headers, TASK, task, _task),
        keep=_choice(headers, KEEP, ("yes", "no"), "yes") == "yes",
    )


def _deadline(headers: Headers, arrived_s: float) -> Deadline | None:
    after_ms = _read(headers, DEADLINE_MS, None, lambda text: _whole(DEADLINE_MS, text, low=1, high=MAX_DEADLINE_MS))
    mode = _choice(headers, DEADLINE_MODE, ("hard", "soft"), "hard")
    may_cut = _read(headers, MAY_CUT, None, _cuts)
    if after_ms is None:
        for name in (DEADLINE_MODE, MAY_CUT):
            if name in headers:
                raise _wrong(name, "says how a deadline is kept, and there is none", f"Send {DEADLINE_MS} as well.")
        return None
    if may_cut is not None and mode == "hard":
        raise _wrong(
            MAY_CUT, "goes with a soft deadline; a hard one cuts nothing", f"Send {DEADLINE_MODE}: soft as well."
        )
    return Deadline(at_s=arrived_s + after_ms / 1000, hard=mode == "hard", may_cut=may_cut or ("tokens",))


def _cuts(text: str) -> tuple[Literal["tokens", "model"], ...]:
    named = {part.strip().lower() for part in text.split(",")}
    if not named <= set(_CUTS):
        raise _wrong(MAY_CUT, f"is {_shown(text)}", "Send tokens, model, or both with a comma between them.")
    return tuple(cut for cut in _CUTS if cut in named)


def _conversation(text: str) -> str:
    if not re.fullmatch(CONVERSATION_PATTERN, text):
        raise _wrong(CONVERSATION, "is no usable name", "Use 1 to 128 visible ASCII characters without spaces.")
    return text


def _task(text: str) -> str:
    if not re.fullmatch(TASK_PATTERN, text.lower()):
        raise _wrong(TASK, f"is {_shown(text)}", "Use up to 32 letters, digits, points, _ and -.")
    return text.lower()


def _whole(name: str, text: str, *, low: int, high: int) -> int:
    # `int` would take signs, underscores and digits of other scripts as well, and numbers of any length.
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else -1
    if not low <= number <= high:
        raise _wrong(name, f"is {_shown(text)}", f"Send a whole number from {low} to {high}.")
    return number


def _choice(headers: Headers, name: str, options: tuple[Value, ...], default: Value) -> Value:
    def chosen(text: str) -> Value:
        for option in options:
            if option == text.lower():
                return option
        raise _wrong(name, f"is {_shown(text)}", f"Send one of {', '.join(map(str, options))}.")

    return _read(headers, name, default, chosen)


def _read(headers: Headers, name: str, default: Value, meaning: Callable[[str], Value]) -> Value:
    given = {text.strip() for text in headers.getlist(name)}
    if not given:
        return default
    if len(given) > 1:
        raise _wrong(name, "is there more than once, with different values", "Send it once.")
    return meaning(given.pop())


def _shown(text: str) -> str:
    """`text` as an error may repeat it: short and printable."""
    return repr(text[:40]) if text else "empty"


def _wrong(name: str, message: str, hint: str) -> RequestError:
    return RequestError(f"{name} {message}", hint=hint, param=name, code="invalid_value")
