"""From chat messages to token ids, without a way for a client's text to become a control token.

The template mixes its own control strings with the client's texts. So that the two can be told apart afterwards,
every control string inside a client's text gets a mark in its middle before rendering, and the rendered text is
cut at the marks. Where no client text holds a control string (nearly always), nothing is marked, and the ids are
those of the rendered text as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from magnitude.errors import RequestError
from magnitude.text.template import TemplateSet
from magnitude.text.tokenizer import TextTokenizer
from magnitude.text.tool_prompt import ToolSpec, messages_for_template

# Unicode sets these aside as no characters at all, so no vocabulary and no template knows them.
_NONCHARACTERS = [chr(0xFDD0 + n) for n in range(32)]
_MARK_LENGTH = 8  # 32^8 marks: that a text already holds the chosen one is checked anyway


def chat_prompt(
    tokenizer: TextTokenizer,
    templates: TemplateSet | None,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[ToolSpec] = (),
    extra: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a chat, ready for the model's answer. Takes long for long texts: call it from a worker thread.

    Raises `RequestError` when the model has no chat template or its template refuses the messages.
    """
    if templates is None:
        raise RequestError(
            "The model has no chat template, so it cannot chat",
            hint="Use /v1/completions with a prompt in the model's own format, or import a chat model.",
            param="model",
            code="no_chat_template",
        )
    template = templates.choose(with_tools=bool(tools))
    mark = _unused_mark(messages, tools, extra)
    shaped = messages_for_template(messages, tools, template_knows_tools=template.uses_tools)
    marked = [_mark_message(tokenizer, message, mark) for message in shaped]
    rendered = template.render(
        marked,
        tools=[_mark_all(tokenizer, t.as_json(), mark) for t in tools] if template.uses_tools else None,
        extra=_mark_all(tokenizer, dict(extra or {}), mark),
    )
    return tokenizer.encode_rendered(rendered.split(mark))


def _unused_mark(*texts: Any) -> str:
    everything = repr(texts)
    while True:
        mark = "".join(secrets.choice(_NONCHARACTERS) for _ in range(_MARK_LENGTH))
        # `repr` spells noncharacters as escapes, so the mark is looked for in that spelling.
        if repr(mark)[1:-1] not in everything:
            return mark


def _mark_message(tokenizer: TextTokenizer, message: Mapping[str, Any], mark: str) -> dict[str, Any]:
    strong_only = message.get("role") == "assistant"
    return {
        key: value if key == "role" else _mark_all(tokenizer, value, mark, strong_only=strong_only)
        for key, value in message.items()
    }


def _mark_all(tokenizer: TextTokenizer, value: Any, mark: str, *, strong_only: bool = False) -> Any:
    if isinstance(value, str):
        marked = mark.join(tokenizer.cut(value, strong_only=strong_only))
        return marked + mark if tokenizer.ends_like_control(value) else marked
    if isinstance(value, Mapping):
        return {
            _mark_all(tokenizer, k, mark, strong_only=strong_only): _mark_all(
                tokenizer, v, mark, strong_only=strong_only
            )
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mark_all(tokenizer, v, mark, strong_only=strong_only) for v in value]
    return value
