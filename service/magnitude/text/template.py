"""Chat templates: a list of messages in, the model's own prompt format out.

Templates are Jinja, as Hugging Face's `apply_chat_template` renders them. No format is invented for a model that
has none: a wrong format costs answer quality without anyone noticing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Template, TemplateError, meta

from magnitude.errors import ModelError, RequestError
from magnitude.text.template_sandbox import Budget, BudgetSpent, TemplateSandbox, check_size, current_budget

_MAX_TEMPLATE_BYTES = 1024 * 1024  # the largest known ones are about 30 KB


class _Refused(Exception):
    """The template called `raise_exception`."""


def _raise_exception(message: object) -> None:
    raise _Refused(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes `<` and `&` for HTML, which models have never seen."""
    check_size(indent if isinstance(indent, int) else 0)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """One compiled template.

    `uses_tools` says that it can write tool definitions into the prompt by itself, in the
    `<tool_call>` format that this service reads.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, now: Callable[[], datetime] = datetime.now
    ) -> None:
        environment = TemplateSandbox()
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(str(pattern))
        try:
            self._template: Template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except (TemplateError, RecursionError) as error:
            raise ModelError(
                f"The chat template cannot be compiled: {error}",
                hint="Import the model again from a source with a working chat template.",
                code="template_invalid",
            ) from error
        self._special_tokens = dict(special_tokens)
        self.uses_tools = "tools" in names and "<tool_call>" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> str:
        """The prompt as text. May take long: call it from a worker thread.

        Raises `RequestError` when the template refuses the messages, `ModelError` when it is broken or never ends.
        """
        variables = {
            **(extra or {}),
            **self._special_tokens,
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        token = current_budget.set(budget or Budget())
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                size += len(part)
                check_size(size)
                parts.append(part)
        except _Refused as refusal:
            raise RequestError(
                f"The model's chat template refuses these messages: {refusal}",
                hint="Change the roles or their order; the message is the template's own.",
                param="messages",
                code="template_refused",
            ) from None
        except (BudgetSpent, MemoryError, OverflowError) as error:
            raise ModelError(
                f"The model's chat template was stopped: {error}",
                hint="The template does more work than a prompt can need. Use another model or repair its template.",
                code="template_stopped",
            ) from None
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError) as error:
            # What a template trips over is nearly always a message shape that its author did not think of.
            raise RequestError(
                f"The model's chat template cannot render these messages: {error}",
                hint="Send plain text content and the roles system, user and assistant in turn.",
                param="messages",
                code="template_failed",
            ) from error
        finally:
            current_budget.reset(token)
        return "".join(parts)


class TemplateSet(msgspec.Struct, frozen=True):
    """The templates of one model by name; `default` is the one for chat."""

    templates: dict[str, ChatTemplate]

    def choose(self, *, with_tools: bool) -> ChatTemplate:
        """The template named `tool_use` for requests with tools, where there is one; otherwise the default."""
        if with_tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        return self.templates["default"]


def load_templates(
    folder: Path,
    template_file: str | None,
    special_tokens: Mapping[str, str],
    *,
    now: Callable[[], datetime] = datetime.now,
) -> TemplateSet | None:
    """Find the chat templates of a model folder; None when it has none.

    Looked for in this order: `template_file`, `chat_template.jinja` (both plain templates), then
    `chat_template` in `tokenizer_config.json` (one template, or a list of named ones). `special_tokens` fill in what
    `tokenizer_config.json` does not say. Raises `ModelError` for one that is too large or cannot be compiled.
    """
    config = _tokenizer_config(folder)
    tokens = {**special_tokens, **_special_tokens(config)}
    sources: dict[str, str] = {}
    given = config.get("chat_template")
    if isinstance(given, str):
        sources["default"] = given
    elif isinstance(given, list):
        for entry in given:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                sources[str(entry.get("name", "default"))] = entry["template"]
    for name in (template_file, "chat_template.jinja"):
        path = None if not name else folder / name
        if path is not None and path.is_file():
            sources["default"] = _read(path)
            break
    if not sources:
        return None
    if "default" not in sources:
        raise ModelError(
            f"None of the chat templates in {folder} is named default (there are: {', '.join(sorted(sources))})",
            hint="Name the one for chat `default` in tokenizer_config.json.",
            param=str(folder),
            code="template_invalid",
        )
    return TemplateSet({name: ChatTemplate(source, tokens, now=now) for name, source in sources.items()})


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = msgspec.json.decode(_read(path))
    except msgspec.MsgspecError as error:
        raise ModelError(
            f"{path} is not valid JSON: {error}", hint="Import the model again.", param=str(path)
        ) from error
    return config if isinstance(config, dict) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Names of special tokens for the template; each is given as a string or as a map with `content`."""
    found: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _read(path: Path) -> str:
    if path.stat().st_size > _MAX_TEMPLATE_BYTES and path.suffix == ".jinja":
        raise ModelError(
            f"{path} is larger than {_MAX_TEMPLATE_BYTES} bytes",
            hint="This is no chat template; import the model again.",
            param=str(path),
        )
    return path.read_text(encoding="utf-8")
