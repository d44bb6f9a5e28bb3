"""Can the configuration be used?"""

from __future__ import annotations

from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding


def check(context: DoctorContext) -> Finding:
    if context.config_error is not None:
        return Finding(
            level="error",
            title="The configuration cannot be used",
            detail=f"{context.config_error.message}\nThe checks below assume the defaults.",
            advice=context.config_error.hint or "Correct it; `magnitude config check` checks it alone",
        )
    read = ", ".join(context.config_files) or "no file, all defaults"
    if context.notices:
        return Finding(level="notice", title="The configuration is valid", detail="\n".join((read, *context.notices)))
    return Finding(level="ok", title="The configuration is valid", detail=read)
