"""The body of `POST /v1/chat/completions`, checked."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from magnitude.config import Settings
from magnitude.errors import RequestError
from magnitude.intake.fields import Fields, type_name
from magnitude.intake.sampling import Sampling, parse_sampling
from magnitude.text.tool_prompt import ToolSpec

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_PARTS = 256
_MAX_TOOLS = 128  # as OpenAI
_MAX_CALLS = 128
_TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}

ToolMode = Literal["none", "auto", "required"]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`callable_tools` are those that the answer may call; the prompt shows all `tools`."""

    model: str
    messages: list[dict[str, Any]]
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    top_logprobs: int | None = None  # None: no log probabilities at all
    tools: tuple[ToolSpec, ...] = ()
    callable_tools: tuple[ToolSpec, ...] = ()
    tool_mode: ToolMode = "none"
    parallel_calls: bool = True
    answer_schema: dict[str, Any] | None = None
    answer_schema_strict: bool = False
    template_extra: dict[str, Any] = {}
    extension: dict[str, Any] = {}  # what a stream's first chunk carries besides, for routes that do more than chat


def parse_chat(data: dict[str, Any], settings: Settings) -> ChatRequest:
    """Check a chat request. Raises `RequestError` naming the field that is wrong."""
    fields = Fields(data)
    model = fields.text("model", max_chars=256)
    messages = _messages(fields, settings.server.max_messages)
    for name in ("functions", "function_call"):
        if fields.has(name):
            raise fields.wrong(name, "is the old form of tools", hint="Use tools and tool_choice.")
    modalities = fields.items("modalities", max_items=8)
    if any(m != "text" for m in modalities):
        raise fields.wrong("modalities", "may only hold text")
    tools = _tools(fields)
    tool_mode, callable_tools = _tool_choice(fields, tools)
    schema, strict = _response_format(fields)
    extra = fields.object("chat_template_kwargs")
    stream, include_usage = parse_stream(fields)
    return ChatRequest(
        model=model,
        messages=messages,
        sampling=parse_sampling(fields, settings.engine),
        stream=stream,
        include_usage=include_usage,
        top_logprobs=_logprobs(fields),
        tools=tools if tool_mode != "none" else (),
        callable_tools=callable_tools,
        tool_mode=tool_mode,
        parallel_calls=fields.boolean("parallel_tool_calls", True),
        answer_schema=schema,
        answer_schema_strict=strict,
        template_extra=extra.as_dict() if extra else {},
    )


def parse_stream(fields: Fields) -> tuple[bool, bool]:
    """`stream` and `stream_options.include_usage`."""
    options = fields.object("stream_options")
    return fields.boolean("stream"), options.boolean("include_usage") if options else False


def _messages(fields: Fields, max_messages: int) -> list[dict[str, Any]]:
    if not isinstance(fields.raw("messages"), list):
        given = type_name(fields.raw("messages")) if fields.has("messages") else "missing"
        raise RequestError(
            f"messages must be a list of messages, it is {given}", param="messages", code="invalid_type"
        )
    items = fields.items("messages", max_items=max_messages)
    if not items:
        raise fields.wrong("messages", "is empty", hint="Send at least one message.")
    return [_message(fields.entry("messages", n, item)) for n, item in enumerate(items)]


def _message(fields: Fields) -> dict[str, Any]:
    if not fields.has("role"):
        raise fields.wrong("role", "is missing")
    role = fields.choice("role", _ROLES, "")
    message: dict[str, Any] = {"role": role, "content": _content(fields)}
    if fields.has("name"):
        message["name"] = fields.text("name", max_chars=256)
    if role == "tool":
        message["tool_call_id"] = fields.text("tool_call_id", max_chars=256)
    if role == "assistant":
        calls = fields.items("tool_calls", max_items=_MAX_CALLS)
        if calls:
            message["tool_calls"] = [_call(fields.entry("tool_calls", n, call)) for n, call in enumerate(calls)]
        if isinstance(fields.raw("reasoning_content"), str):
            message["reasoning_content"] = fields.raw("reasoning_content")
    return message


def _content(fields: Fields) -> str:
    """Content as one text: null and absent are empty, text parts are joined."""
    content = fields.raw("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(
            f"{fields.where('content')} must be a string or a list of parts, not {type_name(content)}",
            param=fields.where("content"),
            code="invalid_type",
        )
    texts: list[str] = []
    for n, item in enumerate(fields.items("content", max_items=_MAX_PARTS)):
        part = fields.entry("content", n, item)
        kind = part.text("type", "text")
        if kind not in _TEXT_PARTS:
            raise part.wrong("type", f"is {kind[:40]!r}; the models here read text only")
        texts.append(part.text(_TEXT_PARTS[kind]))
    return "".join(texts)


def _call(fields: Fields) -> dict[str, Any]:
    function = fields.object("function")
    if function is None:
        raise fields.wrong("function", "is missing")
    arguments = function.raw("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise function.wrong("arguments", "must be a string with JSON")
    return {
        "id": fields.text("id", max_chars=256),
        "type": "function",
        "function": {"name": function.needed_text("name"), "arguments": arguments or "{}"},
    }


def _tools(fields: Fields) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for n, item in enumerate(fields.items("tools", max_items=_MAX_TOOLS)):
        entry = fields.entry("tools", n, item)
        if entry.text("type", "function") != "function":
            raise entry.wrong("type", "must be function")
        function = entry.object("function")
        if function is None:
            raise entry.wrong("function", "is missing")
        name = function.needed_text("name")
        if not _TOOL_NAME.match(name):
            raise function.wrong("name", "may hold letters, digits, _ and -, at most 64 characters")
        if any(tool.name == name for tool in tools):
            raise function.wrong("name", f"appears twice: {name}")
        given = function.object("parameters")
        # As OpenAI has it: no parameters means that the function takes none.
        parameters = {"type": "object", "properties": {}, **(given.as_dict() if given else {})}
        if parameters["type"] != "object":
            raise function.wrong("parameters", "must be a schema of the type object")
        tools.append(
            ToolSpec(
                name=name,
                description=function.text("description"),
                parameters=parameters if given else {**parameters, "additionalProperties": False},
                strict=function.boolean("strict"),
            )
        )
    return tuple(tools)


def _tool_choice(fields: Fields, tools: tuple[ToolSpec, ...]) -> tuple[ToolMode, tuple[ToolSpec, ...]]:
    given = fields.raw("tool_choice")
    if given is None:
        return ("auto", tools) if tools else ("none", ())
    if isinstance(given, str):
        choice = fields.choice("tool_choice", ("none", "auto", "required"), "auto")
        if choice == "required" and not tools:
            raise fields.wrong("tool_choice", "is required, but there are no tools")
        if choice == "none" or not tools:
            return "none", ()
        return ("required" if choice == "required" else "auto"), tools
    named = fields.object("tool_choice")
    function = named.object("function") if named else None
    if named is None or function is None or named.text("type", "function") != "function":
        raise fields.wrong("tool_choice", "must be none, auto, required or a function's name")
    name = function.needed_text("name")
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        raise fields.wrong("tool_choice", f"names {name[:64]!r}, which is not among the tools")
    return "required", chosen


def _response_format(fields: Fields) -> tuple[dict[str, Any] | None, bool]:
    form = fields.object("response_format")
    if form is None:
        return None, False
    kind = form.choice("type", ("text", "json_object", "json_schema"), "")
    if kind == "text":
        return None, False
    if kind == "json_object":
        return {"type": "object"}, False
    wrapped = form.object("json_schema")
    schema = wrapped.object("schema") if wrapped else None
    if wrapped is None or schema is None:
        raise form.wrong("json_schema", "must hold a name and a schema")
    return schema.as_dict(), wrapped.boolean("strict")


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", low=0, high=20)
    if top and not wanted:
        raise fields.wrong("top_logprobs", "needs logprobs to be true")
    return (top or 0) if wanted else None
