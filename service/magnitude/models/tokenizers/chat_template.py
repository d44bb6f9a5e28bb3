"""Where a model's chat template is kept, and which of several is taken.

Looked for in this order: `chat_template.jinja`, `chat_template.json`, `tokenizer_config.json`. The first found
wins, as in Hugging Face Transformers. None found is recorded as none: a made-up template would make a chat model
answer badly without any error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magnitude.errors import ImportFailed
from magnitude.models.untrusted import CONFIG_MAX_BYTES, TEMPLATE_MAX_BYTES, read_json_object, read_text_capped

TEMPLATE_FILE = "chat_template.jinja"


def folder_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The folder's chat template, and a note when one of several was chosen. Raises `ModelError` for a broken one."""
    path = folder / TEMPLATE_FILE
    if path.exists():
        return read_text_capped(path, TEMPLATE_MAX_BYTES, what="chat template") or None, None
    path = folder / "chat_template.json"
    if path.exists():
        value = read_json_object(path, CONFIG_MAX_BYTES, what="chat template").get("chat_template")
        return choose_template(value)
    return choose_template(tokenizer_config.get("chat_template"))


def choose_template(value: object) -> tuple[str | None, str | None]:
    """From `tokenizer_config.json`'s value: a text, or a list of named templates, of which `default` is taken."""
    if not value:
        return None, None
    if isinstance(value, str):
        return _bounded(value), None
    named = _named(value)
    if len(named) == 1:
        return _bounded(next(iter(named.values()))), None
    if "default" in named:
        others = ", ".join(sorted(name for name in named if name != "default"))
        return _bounded(named["default"]), f"chat template 'default' taken; also there: {others}"
    raise ImportFailed(
        f"none of the model's chat templates is called 'default' ({', '.join(sorted(named)) or 'none readable'})",
        hint=f"Save the wanted one as {TEMPLATE_FILE} in the model's folder",
        param="chat_template",
    )


def _named(value: object) -> dict[str, str]:
    entries: list[tuple[object, object]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = [(item.get("name"), item.get("template")) for item in value if isinstance(item, dict)]
    return {name: text for name, text in entries if isinstance(name, str) and isinstance(text, str)}


def _bounded(template: str) -> str:
    size_bytes = len(template.encode())
    if size_bytes > TEMPLATE_MAX_BYTES:
        raise ImportFailed(
            f"the chat template has {size_bytes} bytes, more than the {TEMPLATE_MAX_BYTES} that are read",
            hint="The file is damaged; fetch it again",
            param="chat_template",
        )
    return template
