"""The example, the schema and the documentation say what the program does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml
from msgspec import inspect

from magnitude.config import Settings
from magnitude.config.load import effective, load_text
from magnitude.config.schema import schema, schema_text

CHECKOUT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = CHECKOUT / "config.example.yaml"


def struct_in(type_: inspect.Type) -> inspect.StructType | None:
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.StructType):
        return type_
    if isinstance(type_, inspect.ListType):
        return struct_in(type_.item_type)
    if isinstance(type_, inspect.UnionType):
        return next((found for member in type_.types if (found := struct_in(member))), None)
    return None


def keys(type_: inspect.Type) -> set[str]:
    """Every key name at any depth."""
    struct = struct_in(type_)
    if struct is None:
        return set()
    return {field.encode_name for field in struct.fields} | {
        name for field in struct.fields for name in keys(field.type)
    }


ALL_KEYS = sorted(keys(inspect.type_info(Settings)))


def test_the_example_loads_and_shows_the_defaults() -> None:
    settings = load_text(EXAMPLE.read_text(), EXAMPLE.name).settings
    assert msgspec.structs.replace(settings, agent=None) == Settings()


@pytest.mark.parametrize("key", ALL_KEYS)
def test_every_key_is_in_the_example_and_in_the_documentation(key: str) -> None:
    assert re.search(rf"\b{key}:", EXAMPLE.read_text())
    assert f"`{key}`" in (CHECKOUT / "docs/configuration.md").read_text()


def test_the_published_schema_is_current() -> None:
    published = (CHECKOUT / "docs/configuration.schema.json").read_text()
    assert published == schema_text(), "write it anew: magnitude config schema > docs/configuration.schema.json"


def test_the_schema_describes_every_key() -> None:
    for definition in schema()["$defs"].values():
        for name, field in definition["properties"].items():
            assert field.get("description"), name


def test_the_schema_accepts_the_example_and_the_effective_defaults_and_refuses_unknown_keys() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(yaml.safe_load(EXAMPLE.read_text()))
    validator.validate(yaml.safe_load(effective(Settings())))
    assert not validator.is_valid({"engine": {"thread": 1}})
    assert not validator.is_valid({"server": {"max_request_bytes": "4M"}})
    assert not validator.is_valid({"engine": {"threads": 999}})
    assert json.loads(schema_text()) == schema()
