"""Exit statuses of the service, which its unit file names.

The numbers are those of sysexits.h whose meaning comes closest, so that a person who looks one up is not misled.
"""

from __future__ import annotations

# The configuration cannot be used (EX_CONFIG): starting again changes nothing, the unit does not try.
EXIT_CONFIG = 78
# The engine fell again and again until its restart budget was spent (EX_TEMPFAIL): systemd starts the service anew,
# with growing delays.
EXIT_ENGINE_BUDGET_SPENT = 75
# The last step of the memory ladder (EX_OSERR): a fresh process is the way to get the memory back.
EXIT_MEMORY = 71
# The service found itself broken (EX_SOFTWARE), for example a supervision that ended.
EXIT_BROKEN = 70
