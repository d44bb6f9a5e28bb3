"""Grammars for constrained output, in the Lark dialect of llguidance.

A tool call is written `<tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>`, letter for letter, which is
what Hermes and Qwen models were trained on; only the arguments are the model's own, and they follow the tool's
JSON schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from llguidance import LLMatcher

from magnitude.engine.protocol import GrammarSpec
from magnitude.errors import RequestError
from magnitude.text.tool_prompt import CALL_CLOSE, CALL_OPEN, ToolSpec

# Nothing else ends a row of calls: a small model that is held to calls alone would go on until its limit.
_MAX_CALLS = 8
# Far beyond any hand-written schema; the engine refuses more as well.
_MAX_GRAMMAR_CHARS = 256 * 1024
# llguidance says where in the grammar, which the client never saw.
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
# Free white space lets a small model write blanks until its limit. One fixed style cannot run away, and is how
# json.dumps writes, so models have seen it most.
# The pattern is named so that no other default takes its place.
_JSON_STYLE = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}


def json_grammar(schema: dict[str, Any], *, strict: bool, param: str) -> GrammarSpec:
    """The answer is one JSON value that `schema` allows.

    With `strict` a keyword that cannot be enforced is an error; without, it is not enforced. Raises `RequestError`
    naming `param` for a schema that does not compile. Takes long for large schemas: call it from a worker thread.
    """
    styled = _styled(schema, strict=strict)
    _check(f"start: %json {json.dumps(styled)}", param)
    return GrammarSpec(kind="json_schema", text=json.dumps(styled))


def tool_grammar(
    tools: Sequence[ToolSpec],
    *,
    mode: Literal["auto", "required"],
    parallel: bool,
    marker_ids: tuple[int, int] | None = None,
    answer_schema: dict[str, Any] | None = None,
) -> GrammarSpec:
    """Free text or calls (`auto`), or calls alone (`required`); several in a row only when `parallel`.

    With an `answer_schema` an answer that is no call is JSON of that schema.
    `marker_ids` are the ids of `<tool_call>` and `</tool_call>` when these are special tokens of the vocabulary:
    a special token has no text, so the grammar must name it by id. Raises `RequestError` naming the tool whose
    schema cannot be used. Takes long for large schemas: call it from a worker thread.
    """
    for number, tool in enumerate(tools):
        styled = _styled(tool.parameters, strict=tool.strict)
        _check(f"start: %json {json.dumps(styled)}", f"tools[{number}].function.parameters")
    text = _tool_lark(tools, mode=mode, parallel=parallel, marker_ids=marker_ids, answer=answer_schema)
    _check(text, "tools")
    return GrammarSpec(kind="lark", text=text)


def _tool_lark(
    tools: Sequence[ToolSpec],
    *,
    mode: Literal["auto", "required"],
    parallel: bool,
    marker_ids: tuple[int, int] | None,
    answer: dict[str, Any] | None,
) -> str:
    opening = f"<[{marker_ids[0]}]>" if marker_ids else json.dumps(CALL_OPEN)
    closing = f'"\\n" <[{marker_ids[1]}]>' if marker_ids else json.dumps("\n" + CALL_CLOSE)
    rules: list[str] = []
    for number, tool in enumerate(tools):
        head = json.dumps(f'\n{{"name": {json.dumps(tool.name)}, "arguments": ')
        rules.append(f'body_{number}: {head} args_{number} "}}" {closing}')
        rules.append(f"args_{number}: %json {json.dumps(_styled(tool.parameters, strict=tool.strict))}")
    bodies = " | ".join(f"body_{n}" for n in range(len(tools)))
    rules.append(f"body: {bodies}")
    rules.append(f"calls: {opening} body" + (f' ("\\n" {opening} body){{0,{_MAX_CALLS - 1}}}' if parallel else ""))
    if mode == "required":
        rules.append("start: calls")
    elif answer is not None:
        rules.append("start: calls | answer")
        rules.append(f"answer: %json {json.dumps(_styled(answer, strict=False))}")
    else:
        rules.append(r"TEXT: /(.|\n)*/")
        rules.append("text: TEXT")
        if marker_ids:
            rules.append(f"call: TEXT {opening} body")
        else:
            rules.append(f"before[lazy]: TEXT {opening}")
            rules.append("call: before body")
        rules.append(f"start: call{{0,{_MAX_CALLS}}} text" if parallel else "start: text | call")
    return "\n".join(rules) + "\n"


def _styled(schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    return {**schema, "x-guidance": {**_JSON_STYLE, "lenient": not strict}}


def _check(lark: str, param: str) -> None:
    if len(lark) > _MAX_GRAMMAR_CHARS:
        raise RequestError(
            f"The JSON schema in {param} has {len(lark)} characters, at most {_MAX_GRAMMAR_CHARS} are taken",
            hint="Send fewer tools, or shorter schemas.",
            param=param,
            code="invalid_json_schema",
        )
    failed, messages = LLMatcher.validate_grammar_with_warnings(lark)
    if failed:
        reason = _PLACE.sub("", str(messages[0]).split("\n", maxsplit=1)[0]) if messages else "unknown reason"
        raise RequestError(
            f"The JSON schema in {param} cannot be used: {reason}",
            hint="Use the plain keywords of JSON schema: type, properties, required, items, enum, anyOf, minimum.",
            param=param,
            code="invalid_json_schema",
        )
