"""`policy.field_test:` a test of the strategy loop over many devices."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class FieldTestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[
        str,
        Meta(
            max_length=60,
            description="Name of a test over many devices. Each draws by its machine's id whether its strategy loop "
            "runs, and stays on that side as long as the name is the same. Empty: no test.",
        ),
    ] = ""
    share: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of the devices whose strategy loop runs during the test. Unset: half of them."),
    ] = None
