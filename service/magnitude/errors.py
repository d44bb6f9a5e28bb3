"""The one tree of errors.

An error that a user sees says what happened (`message`), where (`param`, a path or a field) and what to do
next (`hint`). `code` is the stable, machine-readable name. How an error becomes an HTTP status is the
business of `intake`, how it becomes an exit status that of `cli`.
"""

from __future__ import annotations


class MagnitudeError(Exception):
    """Root of all errors raised on purpose.

    `permanent` tells the supervisor whether trying again can help: a broken file stays broken.
    """

    code = "internal_error"
    permanent = False

    def __init__(self, message: str, *, hint: str = "", param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class ConfigError(MagnitudeError):
    """The configuration cannot be used; `param` names the file, line or key."""

    code = "config_invalid"
    permanent = True


class ModelError(MagnitudeError):
    """A model folder or file cannot be used (missing, torn, wrong version, wrong hash)."""

    code = "model_invalid"
    permanent = True


class ImportFailed(ModelError):
    """An import was refused or broke off; nothing usable was left behind."""

    code = "import_failed"


class BudgetExceeded(MagnitudeError):
    """The ledger says that it does not fit into the memory that there is."""

    code = "memory_budget_exceeded"
    permanent = True


class EngineError(MagnitudeError):
    """The engine process could not do its work."""

    code = "engine_error"


class Quarantined(EngineError):
    """The request ended the engine each time that it was tried, with nothing else running. It is not tried again."""

    code = "request_quarantined"
    permanent = True


class EngineNotReady(EngineError):
    """No engine with that model is up yet; `retry_after_s` is when it is worth asking again."""

    code = "engine_not_ready"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, hint: str = ""):
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class MemoryPressure(EngineNotReady):
    """Memory is short, and the request is one of those that are given up for the others."""

    code = "memory_pressure"


class RequestError(MagnitudeError):
    """The request is at fault; sending it again unchanged will fail again."""

    code = "invalid_request"
    permanent = True


class ContextLengthExceeded(RequestError):
    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    code = "model_not_found"


class Unauthorized(RequestError):
    code = "invalid_api_key"


class Forbidden(RequestError):
    code = "forbidden"


class TooLarge(RequestError):
    code = "request_too_large"


class Overloaded(MagnitudeError):
    """The queue is full; `retry_after_s` is when it is worth asking again. `position`: the place in the queue that
    the request would have had (1 is next); None when there is no queue to stand in."""

    code = "queue_full"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        position: int | None = None,
        hint: str = "",
        param: str | None = None,
    ):
        super().__init__(message, hint=hint, param=param)
        self.retry_after_s = retry_after_s
        self.position = position


class DeadlineExceeded(MagnitudeError):
    """The answer was not complete at its hard deadline. What was done by then: `prompt_tokens` processed (those
    found in the cache included), `new_tokens` generated, and the `text` of them where nobody has it yet."""

    code = "deadline_exceeded"

    def __init__(self, message: str, *, prompt_tokens: int = 0, new_tokens: int = 0, text: str = "", hint: str = ""):
        super().__init__(message, hint=hint)
        self.prompt_tokens = prompt_tokens
        self.new_tokens = new_tokens
        self.text = text


class Cancelled(MagnitudeError):
    """The client went away or asked to stop; not a failure of the service."""

    code = "cancelled"
