"""How tool definitions, calls and results are put into the prompt.

A template that knows tools in the `<tool_call>` format (Hermes, Qwen) gets them as they are. For every other one
the definitions become a short section of the system message, one line a tool, and earlier calls and results
become plain text in the same format: small models have little context to spare.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One function that the model may call; `parameters` is the JSON schema of its arguments (an object)."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False

    def as_json(self) -> dict[str, Any]:
        """The definition in the words of the OpenAI API, which templates expect."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


def tool_section(tools: Sequence[ToolSpec]) -> str:
    """The part of the system message that tells the model about its tools."""
    lines = [f"- {tool.name}({_signature(tool.parameters)}): {_one_line(tool.description)}" for tool in tools]
    return (
        "You can call these tools:\n"
        + "\n".join(lines)
        + f"\nTo call one, answer with exactly:\n{CALL_OPEN}\n"
        + '{"name": "tool name", "arguments": {"parameter": "value"}}'
        + f"\n{CALL_CLOSE}"
    )


def messages_for_template(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec], *, template_knows_tools: bool
) -> list[dict[str, Any]]:
    """Messages in the shape that the template can render. Turns are never merged or put in another order."""
    if template_knows_tools:
        return [_with_parsed_arguments(message) for message in messages]
    shaped = [_as_plain_text(message) for message in messages]
    if not tools:
        return shaped
    section = tool_section(tools)
    if shaped and shaped[0]["role"] == "system":
        first = shaped[0]
        return [{**first, "content": f"{first['content']}\n\n{section}".lstrip()}, *shaped[1:]]
    return [{"role": "system", "content": section}, *shaped]


def _as_plain_text(message: Mapping[str, Any]) -> dict[str, Any]:
    content = str(message.get("content") or "")
    role = str(message["role"])
    if role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if role == "developer":
        return {"role": "system", "content": content}
    calls = [_call_text(call) for call in message.get("tool_calls") or []]
    return {"role": role, "content": "\n".join([*([content] if content else []), *calls])}


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = json.dumps(_arguments(function.get("arguments")), ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{CALL_OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{CALL_CLOSE}'


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Templates want arguments as an object, clients send them as text. A missing content becomes ""."""
    shaped = dict(message)
    shaped["content"] = shaped.get("content") or ""
    if shaped["role"] == "developer":
        shaped["role"] = "system"
    if shaped.get("tool_calls"):
        shaped["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"].get("arguments"))}}
            for call in shaped["tool_calls"]
        ]
    else:
        shaped.pop("tool_calls", None)
    return shaped


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return given or {}
    try:
        return json.loads(given) if given.strip() else {}
    except ValueError:
        return given


def _signature(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return ""
    required = schema.get("required") or []
    return ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_name(spec)}" for name, spec in properties.items()
    )


def _type_name(spec: Any) -> str:
    if not isinstance(spec, dict):
        return "any"
    values = spec.get("enum")
    if isinstance(values, list) and values:
        return "|".join(json.dumps(v, ensure_ascii=False) for v in values)
    kind = spec.get("type", "any")
    if kind == "array":
        return f"{_type_name(spec.get('items'))}[]"
    if kind == "object" and isinstance(spec.get("properties"), dict):
        return "{" + _signature(spec) + "}"
    return "|".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _one_line(text: str) -> str:
    return " ".join(text.split())
