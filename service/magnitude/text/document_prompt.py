"""How documents enter a prompt: numbered, in front of the question that they are to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_INSTRUCTION = "Use these documents to answer."


def document_text(number: int, text: str) -> str:
    """One document as it stands in the prompt."""
    return f"[{number}] {text.strip()}\n\n"


def with_documents(
    messages: Sequence[Mapping[str, Any]], query: str, documents: Sequence[str]
) -> list[dict[str, Any]]:
    """`messages` with the documents before the text of the last user message; without one, `query` becomes it."""
    result = [dict(message) for message in messages]
    places = [place for place, message in enumerate(result) if message.get("role") == "user"]
    if not places:
        result.append({"role": "user", "content": query})
        places = [len(result) - 1]
    listed = "".join(document_text(number, text) for number, text in enumerate(documents, 1))
    question = result[places[-1]]
    question["content"] = f"{listed}{_INSTRUCTION}\n\n{question.get('content') or ''}"
    return result
