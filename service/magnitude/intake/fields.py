"""Reading fields of a JSON request: lenient where clients vary, exact about what is wrong.

`null` counts as absent. Fields that are not asked for are ignored. A wrong type or value raises `RequestError`
with the field's path as `param`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnitude.errors import RequestError

_NAMES = {
    str: "a string",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    int: "a number",
    float: "a number",
}


class Fields:
    """One JSON object of a request. `path` is where it stands (`""`, `messages[3]`)."""

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self._data = data
        self._path = path

    def where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def wrong(self, name: str, message: str, *, hint: str = "") -> RequestError:
        """An error about the field `name`; `message` continues a sentence that starts with it."""
        return RequestError(f"{self.where(name)} {message}", hint=hint, param=self.where(name), code="invalid_value")

    def raw(self, name: str) -> Any:
        return self._data.get(name)

    def has(self, name: str) -> bool:
        return self._data.get(name) is not None

    def text(self, name: str, default: str = "", *, max_chars: int | None = None) -> str:
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._type(name, value, "a string")
        if max_chars is not None and len(value) > max_chars:
            raise self.wrong(name, f"has {len(value)} characters, at most {max_chars} are allowed")
        return value

    def needed_text(self, name: str) -> str:
        if not self.has(name):
            raise self.wrong(name, "is missing")
        return self.text(name)

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._type(name, value, "true or false")
        return value

    def integer(self, name: str, *, low: int | None = None, high: int | None = None) -> int | None:
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, float):
            raise self.wrong(name, f"must be a whole number, not {value}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._type(name, value, "a whole number")
        self._range(name, value, low, high)
        return value

    def number(self, name: str, default: float, *, low: float | None = None, high: float | None = None) -> float:
        value = self._data.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._type(name, value, "a number")
        self._range(name, value, low, high)
        return float(value)

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        value = self.text(name, default)
        if value not in options:
            raise self.wrong(name, f"must be one of {', '.join(options)}")
        return value

    def items(self, name: str, *, max_items: int) -> list[Any]:
        value = self._data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._type(name, value, "a list")
        if len(value) > max_items:
            raise self.wrong(name, f"has {len(value)} entries, at most {max_items} are allowed")
        return value

    def object(self, name: str) -> Fields | None:
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._type(name, value, "an object")
        return Fields(value, self.where(name))

    def entry(self, name: str, index: int, value: Any) -> Fields:
        """The entry `index` of the list `name`, which must be an object."""
        where = f"{self.where(name)}[{index}]"
        if not isinstance(value, dict):
            raise RequestError(f"{where} must be an object, not {type_name(value)}", param=where, code="invalid_type")
        return Fields(value, where)

    def as_dict(self) -> dict[str, Any]:
        return dict(self._data)

    def _type(self, name: str, value: Any, wanted: str) -> RequestError:
        return RequestError(
            f"{self.where(name)} must be {wanted}, not {type_name(value)}",
            param=self.where(name),
            code="invalid_type",
        )

    def _range(self, name: str, value: float, low: float | None, high: float | None) -> None:
        if low is not None and value < low:
            raise self.wrong(name, f"must be at least {low}")
        if high is not None and value > high:
            raise self.wrong(name, f"must be at most {high}")


def type_name(value: Any) -> str:
    """JSON's name for the type of `value`, with its article."""
    return "null" if value is None else _NAMES.get(type(value), "something else")
