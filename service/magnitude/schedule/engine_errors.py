"""The engine's reports of failure as errors of this process."""

from __future__ import annotations

from magnitude.engine.protocol import Failed
from magnitude.errors import EngineError, MagnitudeError, ModelError, RequestError


def error_from(message: Failed) -> MagnitudeError:
    """The error that the engine reported, as one of ours."""
    if message.request_fault:
        return RequestError(message.message, hint=message.hint, param=message.param, code=message.code)
    if message.permanent:
        return ModelError(message.message, hint=message.hint, param=message.param, code=message.code)
    return EngineError(message.message, hint=message.hint, param=message.param, code=message.code)
