"""Does the processor count cycles and cache misses for the engine? Without that, the share of the memory's bandwidth
that decoding takes is estimated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from magnitude.board.counters import Counters
from magnitude.cli.client import ServiceRefused, ServiceUnreachable, candidates, connect
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

DROP_IN = "hardware-counters.conf"


def check(context: DoctorContext) -> Finding:
    """As the service's engine sees it; where none runs, as this user does."""
    try:
        with connect(candidates(context.settings, context.paths)) as client:
            state = client.get("/v1/magnitude/state")["counters"]
            return judge(state["not_counted"], counted=state["status"] != "not available", who="the service")
    except (ServiceUnreachable, ServiceRefused, LookupError, TypeError):
        counters = Counters()
        counters.close()
        missing = {str(name): why for name, why in counters.missing.items()}
        return judge(missing, counted=len(missing) < counters.known, who="this user")


def judge(missing: Mapping[str, str], *, counted: bool, who: str) -> Finding:
    """`missing`: figures that are not counted, and why; `counted`: whether there are others."""
    found = partial(Finding, detail="\n".join(f"{name}: {why}" for name, why in missing.items()))
    if counted:
        return found(level="ok", title=f"The processor counts for {who}{', but not everything' if missing else ''}")
    forbidden = any("not permitted" in why for why in missing.values())
    return found(
        level="notice" if forbidden else "ok",
        title=f"Hardware counters are not available to {who}",
        advice=f"systemd/optional/{DROP_IN} permits them to the service" if forbidden else "",
    )
