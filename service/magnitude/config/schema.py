"""The configuration's JSON schema, for editors and for checks outside of this program."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from magnitude.config.settings import Settings


def schema() -> dict[str, Any]:
    """JSON schema (2020-12) of `Settings`. Durations and sizes may be numbers or text with a unit."""
    document = msgspec.json.schema(Settings)
    for definition in document["$defs"].values():
        for name, field in definition.get("properties", {}).items():
            what = "duration" if name.endswith("_s") else "size" if name.endswith("_bytes") else ""
            if what and field.get("type") in ("integer", "number"):
                _allow_units(field, what)
            elif what and "anyOf" in field:  # it may be left unset
                field["anyOf"].append(_with_units(what))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Magnitude configuration",
        **document,
    }


def schema_text() -> str:
    """The schema as the file `docs/configuration.schema.json` holds it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _allow_units(field: dict[str, Any], what: str) -> None:
    bounds = {key: field.pop(key) for key in list(field) if key not in ("description", "default")}
    field["anyOf"] = [bounds, _with_units(what)]


def _with_units(what: str) -> dict[str, Any]:
    units = "ms|s|min|h|d" if what == "duration" else "B|[kMGT]B|[KMGT]iB"
    parts = f"([0-9]+(\\.[0-9]+)?\\s*({units})\\s*)"
    return {"type": "string", "pattern": f"^{parts}{'+' if what == 'duration' else ''}$"}
