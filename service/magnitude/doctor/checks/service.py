"""Does the service answer, and is it ready?"""

from __future__ import annotations

from magnitude.cli.client import ServiceUnreachable, candidates, connect
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding


def check(context: DoctorContext) -> Finding:
    try:
        with connect(candidates(context.settings, context.paths)) as client:
            ready, said = client.readiness()
            where = str(client.address)
    except ServiceUnreachable as error:
        return Finding(
            level="notice",
            title="The service is not running, or cannot be reached",
            detail=error.message,
            advice=error.hint,
        )
    if ready:
        return Finding(level="ok", title="The service is ready", detail=where)
    reasons = [str(reason) for reason in said.get("reasons", [])]
    return Finding(
        level="warning",
        title="The service runs but is not ready",
        detail="\n".join((where, *reasons)),
        advice="Wait while it starts; if it stays so, look at its log (`journalctl -u magnitude`)",
    )
