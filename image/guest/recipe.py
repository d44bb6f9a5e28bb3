"""What a step of a build is made of: the key under which its result is kept has to change with it."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

# Of constants those that say something by themselves. A path says where a checkout lies, and not what is in it.
_PLAIN = (str, int, float, tuple, frozenset, dict)


def recipe_of(step: Callable[..., object], *, without: tuple[object, ...] = ()) -> list[str]:
    """The code of `step`, of every function and class of this project that it comes to by name, and the constants
    that they name: one text each, without comments, in a fixed order.

    `without` are functions that change nothing about what is made. Files that a step reads are not found this way.
    """
    found: dict[str, str] = {}
    _gather(step, found, step.__module__.partition(".")[0], without)
    return [f"{name} {found[name]}" for name in sorted(found)]


def _gather(thing: Any, found: dict[str, str], package: str, without: tuple[object, ...]) -> None:
    name = f"{thing.__module__}.{thing.__qualname__}"
    if name in found or thing in without:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    found[name] = ast.unparse(tree)
    for where, value in _named(tree, vars(sys.modules[thing.__module__]), package):
        if inspect.isfunction(value) or inspect.isclass(value):
            if _belongs(value.__module__, package):
                _gather(value, found, package, without)
        elif isinstance(value, _PLAIN):
            found[f"{thing.__module__}.{where}"] = repr(value)


def _named(tree: ast.AST, module: dict[str, Any], package: str) -> Iterator[tuple[str, Any]]:
    """What `tree` calls by a name of its module, or of another module of `package` with that one's name before it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in module:
            yield node.id, module[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            other = module.get(node.value.id)
            if isinstance(other, ModuleType) and _belongs(other.__name__, package) and hasattr(other, node.attr):
                yield f"{node.value.id}.{node.attr}", getattr(other, node.attr)


def _belongs(module: str, package: str) -> bool:
    return module.partition(".")[0] == package
