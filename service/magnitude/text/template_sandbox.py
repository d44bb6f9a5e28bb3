"""Where chat templates run: Jinja's sandbox, with a budget.

A template comes with a model, so it is a stranger's program. The sandbox keeps it away from Python's internals.
Against endless work every turn of a loop and every call is counted, which stops any template at the same place
on every machine; against endless memory every operation that can make a long string from a short one is checked
before it runs.
"""

from __future__ import annotations

import contextvars
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

# 512 messages with some hundred steps each; loops of this length take a quarter of a second on x86.
MAX_STEPS = 500_000
# For templates that are slow in ways the steps do not show. Macro calls take ten times as long as loop turns.
MAX_SECONDS = 2.0
# Four times the largest request body that is taken by default.
MAX_CHARS = 16 * 1024 * 1024

_MAX_NUMBER_BITS = 4096  # numbers in templates count messages
_CLOCK_EVERY_STEPS = 1024  # reading the clock costs as much as a step
# Widths from five digits on, and widths that come from an argument.
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)")
_WIDE_FORMAT = re.compile(r"\{[^{}]*(\d{5,}|\{)")
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
# Filters that chat templates do not use and whose output has no bound by their input.
_UNBOUNDED_FILTERS = ("center", "format", "batch", "slice", "wordwrap", "pprint", "xmlattr", "urlize")


class BudgetSpent(Exception):
    """The template wanted more work or memory than one prompt can need."""


class Budget:
    """Work that one rendering may do."""

    def __init__(
        self, *, steps: int = MAX_STEPS, seconds: float = MAX_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._left = steps
        self._clock = clock
        self._end_s = clock() + seconds

    def step(self) -> None:
        """Count one turn of a loop or one call. Raises `BudgetSpent`."""
        self._left -= 1
        if self._left < 0:
            raise BudgetSpent("it took too many steps")
        if self._left % _CLOCK_EVERY_STEPS == 0 and self._clock() > self._end_s:
            raise BudgetSpent("it took too long")


current_budget: contextvars.ContextVar[Budget | None] = contextvars.ContextVar("template_budget", default=None)


def _step() -> None:
    budget = current_budget.get()
    if budget is not None:
        budget.step()


def check_size(chars: int) -> None:
    """Raises `BudgetSpent` for a string or list that is about to become too long."""
    if chars > MAX_CHARS:
        raise BudgetSpent("it made a text that is too long")


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _step()
        yield item


def _bounded_concat(parts: Iterable[str]) -> str:
    kept, size = [], 0
    for part in parts:
        size += len(part)
        check_size(size)
        kept.append(part)
    return "".join(kept)


class _Generation(Extension):
    """`{% generation %}` marks the model's turns for training; when serving it only groups text."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment in which templates are compiled; `concat` and the operators are bounded."""

    intercepted_binops = frozenset({"**", "*", "+", "%"})
    concat = staticmethod(_bounded_concat)

    def __init__(self) -> None:
        # trim_blocks and lstrip_blocks are how the authors of chat templates see them rendered.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _Generation]
        )
        self.filters.update(_counted=_counted, indent=_indent, replace=_replace, join=_join)
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
        return _without_concat(tree, self)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`+ * ** %` with a look at the size of what would come out."""
        _step()
        if operator in ("**", "*") and isinstance(left, int) and isinstance(right, int):
            times = right if operator == "**" else 1
            if left.bit_length() * max(times, 1) + right.bit_length() > _MAX_NUMBER_BITS:
                raise BudgetSpent("it computes with huge numbers")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    check_size(len(value) * max(times, 0))
        elif operator == "+":
            if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            _check_percent_format(left)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja asks this for every method that a template looks up, and gets `str.format` in its safe form."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FORMAT.search(str(value.__self__)):
            raise BudgetSpent("it formats to a huge width")
        return wrapped

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call from a template. Named like Jinja's own, so that a keyword argument `self` passes through."""
        _step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_string_method(owner, getattr(__obj, "__name__", ""), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _without_concat(tree: nodes.Template, environment: Environment) -> nodes.Template:
    """`a ~ b` joins without asking the environment; a filter that joins with a bound stands in for it."""

    def rewrite(node: nodes.Node) -> nodes.Node:
        for field, value in node.iter_fields():
            if isinstance(value, nodes.Node):
                setattr(node, field, rewrite(value))
            elif isinstance(value, list):
                setattr(node, field, [rewrite(v) if isinstance(v, nodes.Node) else v for v in value])
        if isinstance(node, nodes.Concat):
            joined: nodes.Expr = nodes.Filter(node.nodes[0], "string", [], [], None, None, lineno=node.lineno)
            for part in node.nodes[1:]:
                text = nodes.Filter(part, "string", [], [], None, None, lineno=node.lineno)
                joined = nodes.Add(joined, text, lineno=node.lineno)
            return joined
        return node

    rewritten = rewrite(tree)
    assert isinstance(rewritten, nodes.Template)
    rewritten.set_environment(environment)
    return rewritten


def _check_percent_format(pattern: str) -> None:
    if _WIDE_PERCENT.search(pattern):
        raise BudgetSpent("it formats to a huge width")


def _check_string_method(owner: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Look at a call of a string's method that can make a long string from a short one."""
    if method in _PADDING_METHODS:
        places = owner.count("\t") + 1 if method == "expandtabs" else 1
        for size in (*args, *kwargs.values()):
            if isinstance(size, int):
                check_size(size * places)
    elif method == "replace" and len(args) >= 2:
        _check_replace(owner, str(args[0]), str(args[1]))
    elif method == "join" and args:
        if not isinstance(args[0], list | tuple):
            raise BudgetSpent("it joins something that is not a list")
        check_size(sum(len(str(item)) + len(owner) for item in args[0]))
    elif method == "translate":
        raise BudgetSpent("it calls translate, whose result has no bound")


def _check_replace(text: str, old: str, new: str) -> None:
    times = text.count(old) if old else len(text) + 1
    check_size(len(text) + times * max(0, len(new) - len(old)))


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    _check_replace(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    space = width if isinstance(width, int) else len(str(width))
    check_size(len(str(text)) + (str(text).count("\n") + 1) * max(space, 0))
    return do_indent(str(text), width, first, blank)


def _join(items: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    texts: list[str] = []
    size = 0
    for item in _counted(items):
        value = item[attribute] if attribute is not None and isinstance(item, Mapping) else item
        texts.append(str(value))
        size += len(texts[-1]) + len(str(separator))
        check_size(size)
    return str(separator).join(texts)
