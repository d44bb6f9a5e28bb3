"""`/v1/magnitude/reload`: read the configuration again, as SIGHUP does, and say how that went."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import ConfigError, MagnitudeError
from magnitude.intake.context import context_of
from magnitude.intake.replies import json_reply


async def reload_configuration(request: Request) -> Response:
    """Which keys count now and which need a restart. A configuration that is broken changes nothing."""
    reload = context_of(request).live.reload
    if reload is None:
        raise MagnitudeError(
            "This service cannot read its configuration again",
            hint="Restart it instead.",
            code="reload_unavailable",
        )
    outcome = await reload()
    if outcome.error:
        raise ConfigError(f"{outcome.error} (old configuration kept)", hint=outcome.hint)
    return json_reply(outcome)
