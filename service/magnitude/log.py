"""Logging: one line an event, in the shape that the reader at the other end of stderr wants.

An event is an ordinary `logging` call. Numbers and names go beside the text, so that every format can show them:

    log.info("generation finished", extra={"request_id": key, "fields": {"tokens": 12, "decode_s": 0.31}})

Formats: `journal` (systemd's `<6>` priority prefix, no time: the journal has its own), `pretty` (colours in a
terminal), `plain` (time, level, text), `json` (one object a line). A warning or an error that keeps coming back
is written about once a minute, with the count of those left out; `extra={"cause": "..."}` puts any event under
this rule and names what counts as the same, and `"burst": N` lets N of them a minute through.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, TextIO

import msgspec

from magnitude.config.log import LogSettings
from magnitude.errors import MagnitudeError

Format = Literal["journal", "pretty", "plain", "json"]

QUIET_S = 60.0  # a line a minute shows that a fault lasts, and costs a journal less than 200 kB a day
# For what is no fault, but comes back each second while there is one: as much as a person does by hand in a minute.
ORDINARY_BURST = 5
MAX_CAUSES = 256  # bounds the limiter's memory whatever is logged

# Fields that name what an event is about. Others (a reason, an error) may hold a new number every time.
_SUBJECTS = ("model", "folder")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request that the running task serves; put into every line that does not name one itself."""


class _Cause(msgspec.Struct):
    since_s: float  # when the first of those was shown that count together
    shown: int = 1
    suppressed: int = 0


class Limiter:
    """Says whether an event is shown. Holds no clock: `now_s` is any time that does not go backwards, in s."""

    def __init__(self, quiet_s: float = QUIET_S, max_causes: int = MAX_CAUSES) -> None:
        self._quiet_s = quiet_s
        self._max_causes = max_causes
        self._causes: dict[Hashable, _Cause] = {}

    def admit(self, cause: Hashable, now_s: float, burst: int = 1) -> int | None:
        """None: leave the event out. n: show it, n of its kind were left out since the last one shown. `burst` are
        shown before any is left out."""
        known = self._causes.pop(cause, None)
        if known is not None and now_s - known.since_s < self._quiet_s:
            self._causes[cause] = known
            if known.shown < burst:
                known.shown += 1
                return 0
            known.suppressed += 1
            return None
        if len(self._causes) >= self._max_causes:
            del self._causes[next(iter(self._causes))]  # the one not seen for longest
        self._causes[cause] = _Cause(now_s)
        return known.suppressed if known is not None else 0


def cause_of(record: logging.LogRecord) -> Hashable | None:
    """What makes two events the same, or None for an event that is never left out.

    The text before its arguments are put in, with those arguments that are words and the fields that say whom it
    is about, and the kind of error: two models are two causes, two durations are one.
    """
    named = getattr(record, "cause", None)
    if named is not None:
        return (record.name, str(named))
    if record.levelno < logging.WARNING:
        return None
    arguments = record.args if isinstance(record.args, tuple) else ()
    words = tuple(str(argument) for argument in arguments if not isinstance(argument, int | float))
    fields = getattr(record, "fields", {})
    whom = tuple(str(fields[name]) for name in _SUBJECTS if name in fields)
    raised = type(record.exc_info[1]).__name__ if record.exc_info and record.exc_info[1] is not None else ""
    return (record.name, record.levelno, str(record.msg), words, whom, raised)


class LimitFilter(logging.Filter):
    """Puts a `Limiter` in front of a handler; the count of the left out travels as `record.suppressed`."""

    def __init__(self, limiter: Limiter, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limiter = limiter
        self._clock = clock

    def filter(self, record: logging.LogRecord) -> bool:
        cause = cause_of(record)
        if cause is None:
            return True
        suppressed = self._limiter.admit(cause, self._clock(), getattr(record, "burst", 1))
        if suppressed is None:
            return False
        record.suppressed = suppressed
        return True


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Everything that an event carries beside its text, the request first."""
    fields: dict[str, Any] = {}
    key = getattr(record, "request_id", "") or request_id.get()
    if key:
        fields["request"] = key
    fields.update(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields["error"] = error.message if isinstance(error, MagnitudeError) else f"{type(error).__name__}: {error}"
    if suppressed := getattr(record, "suppressed", 0):
        fields["suppressed"] = suppressed
    return fields


def _traceback_of(record: logging.LogRecord) -> list[str]:
    """Lines of the stack, for errors nobody raised on purpose."""
    if not record.exc_info or record.exc_info[1] is None or isinstance(record.exc_info[1], MagnitudeError):
        return []
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip().split("\n")


def _one_line(text: str) -> str:
    """`text` with everything escaped that would start a new line or drive a terminal: a client's words must not
    forge a log line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _word(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _one_line(str(value))
    return '"' + text.replace('"', '\\"') + '"' if not text or any(c in text for c in ' "=') else text


def _text(record: logging.LogRecord) -> str:
    words = [_one_line(record.getMessage())]
    words += [f"{name}={_word(value)}" for name, value in fields_of(record).items()]
    return " ".join(words)


class PlainFormatter(logging.Formatter):
    """Local time, level and text."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        return "\n".join([f"{stamp} {record.levelname.lower():7} {_text(record)}", *_traceback_of(record)])


class JournalFormatter(logging.Formatter):
    """`<priority>text` as sd-daemon(3) defines it; each further line repeats the prefix to keep its priority."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_priority(record.levelno)}>"
        return "\n".join(prefix + line for line in [_text(record), *_traceback_of(record)])


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in fields_of(record).items():
            event.setdefault(name, value)
        if stack := _traceback_of(record):
            event["traceback"] = stack
        return json.dumps(event, default=str)


class PrettyHandler(logging.StreamHandler[TextIO]):
    """Short lines with colours, for a person who watches."""

    _STYLES: ClassVar = {
        logging.DEBUG: "dim",
        logging.INFO: "green",
        logging.WARNING: "yellow",
        logging.ERROR: "bold red",
    }

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console

        self._console = Console(file=stream, soft_wrap=True, highlight=False)

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        try:
            line = Text(datetime.fromtimestamp(record.created).strftime("%H:%M:%S "), style="dim")
            line.append(f"{record.levelname.lower():7} ", style=self._STYLES.get(record.levelno, "bold red"))
            line.append(_one_line(record.getMessage()))
            for name, value in fields_of(record).items():
                line.append(f" {name}=", style="dim").append(_word(value), style="cyan")
            for further in _traceback_of(record):
                line.append(f"\n{further}", style="dim")
            self._console.print(line)
        except Exception:
            self.handleError(record)


def _priority(level: int) -> int:
    """syslog's number for a `logging` level."""
    if level >= logging.CRITICAL:
        return 2
    if level >= logging.ERROR:
        return 3
    if level >= logging.WARNING:
        return 4
    return 6 if level >= logging.INFO else 7


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether `stream` is the very pipe that systemd named in JOURNAL_STREAM: the variable is inherited by
    children whose stderr goes elsewhere, so device and inode decide."""
    try:
        device, inode = environ.get("JOURNAL_STREAM", "").split(":")
        status = os.fstat(stream.fileno())
        return (status.st_dev, status.st_ino) == (int(device), int(inode))
    except (ValueError, OSError):
        return False


def choose_format(settings: LogSettings, stream: TextIO, environ: Mapping[str, str]) -> Format:
    """The configured format; for `auto` the one that fits `stream`."""
    if settings.format != "auto":
        return settings.format
    if _is_journal(stream, environ):
        return "journal"
    return "pretty" if stream.isatty() and environ.get("TERM") != "dumb" else "plain"


def setup(settings: LogSettings, stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> None:
    """Send all logging of this process to `stream` (stderr). Calling it again replaces the earlier set-up.

    Libraries are heard from warnings on; `settings.level` is for the project's own loggers.
    """
    stream = sys.stderr if stream is None else stream
    form = choose_format(settings, stream, os.environ if environ is None else environ)
    handler: logging.StreamHandler[TextIO]
    if form == "pretty":
        handler = PrettyHandler(stream)
    else:
        handler = logging.StreamHandler(stream)
        formatters = {"journal": JournalFormatter, "plain": PlainFormatter, "json": JsonFormatter}
        handler.setFormatter(formatters[form]())
    handler.addFilter(LimitFilter(Limiter()))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("magnitude").setLevel(settings.level.upper())
