"""Takes out of texts what must not leave the machine: keys, passwords, and what people said to the models.

Two nets: values of names that speak of a secret, wherever they stand, and secrets that are known, whatever they are
called. What looks like a secret and is none is lost as well; that is the right side to be wrong on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

REMOVED = "(removed)"
CONTENT_LINE = "(a line with a prompt or an answer was left out)"

_NAME = r"[\w.-]*(?:api[-_]?key|authorization|credentials?|passw(?:or)?d|private[-_]?key|secret|sha256|token)"
# As it stands in YAML, JSON, logs, environments and headers; a quoted value ends at its quote.
_NAMED = re.compile(
    rf"""(?ix) (?<![\w.-]) (["']? {_NAME} ["']? \s* [:=] \s*)
    (?: (?:bearer|basic) \s+ )?
    (?: "(?:[^"\\]|\\.)*" | '[^']*' | [^\s,;&}}\])]+ )"""
)
_NAME_ALONE = re.compile(rf"(?i){_NAME}")
_SHAPES = (
    re.compile(r"(?i)\bbearer\s+[\w.~+/=-]+"),
    # Ours, and those of services and forges that people paste into configurations.
    re.compile(r"\b(?:mag|sk|pk|hf|ghp|gho|glpat|xox[abp])[-_][A-Za-z0-9_-]{12,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),  # a JSON web token
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)
_IN_URL = re.compile(r"(?<=://)[^\s/@]+@")
# What `log.content` makes the service write, in any of its formats.
_CONTENT = re.compile(
    r"""\b(?:prompt|answer|messages)=|"(?:prompt|answer|messages|content)"\s*:|"message"\s*:\s*"content\""""
)


class Redactor:
    """`secrets` are strings that must appear nowhere."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # Longest first: one can be the beginning of another. Very short ones would tear every text apart.
        self._secrets = sorted({secret for secret in secrets if len(secret) >= 6}, key=len, reverse=True)

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, REMOVED)
        for shape in _SHAPES:
            text = shape.sub(REMOVED, text)
        text = _IN_URL.sub(f"{REMOVED}@", text)
        return _NAMED.sub(rf"\g<1>{REMOVED}", text)

    def log(self, text: str) -> str:
        """Lines of a log without secrets, and without the lines that hold prompts or answers."""
        kept = (CONTENT_LINE if _CONTENT.search(line) else line for line in text.splitlines())
        return self.text("\n".join(kept) + "\n")

    def tree(self, value: Any) -> Any:
        """A document of maps and lists, without the values of names that speak of a secret."""
        if isinstance(value, dict):
            return {
                key: REMOVED if _NAME_ALONE.fullmatch(str(key)) and below not in (None, "") else self.tree(below)
                for key, below in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.tree(below) for below in value]
        return self.text(value) if isinstance(value, str) else value
