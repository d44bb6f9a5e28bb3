"""What a model family is: a few facts by which its graph and its files differ from the others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from magnitude.errors import ImportFailed
from magnitude.models.sources.source import ArchConfig

T = TypeVar("T")

# Shapes larger than these are forged or far beyond any board; they bound what a configuration can make us allocate.
MAX_LAYERS = 512
MAX_WIDTH = 1 << 20
MAX_POSITIONS = 1 << 24


class HasShape(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class Family(Protocol):
    """One family. `name` is also the manifest's and GenAI's model type."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Literal["decoder", "encoder"]: ...

    @property
    def gguf_architecture(self) -> str | None: ...

    @property
    def huggingface_architectures(self) -> tuple[str, ...]: ...

    @property
    def gguf_interleaves_rotary(self) -> bool: ...

    def from_gguf(self, fields: Mapping[str, Any], tensors: Mapping[str, HasShape]) -> ArchConfig: ...

    def from_huggingface(self, config: Mapping[str, Any], folder: Path) -> ArchConfig: ...

    def tensors(self, config: ArchConfig) -> dict[str, tuple[int, ...]]:
        """Every tensor that the graph reads, with its shape."""
        ...

    def ignores(self, name: str) -> bool:
        """Whether a tensor may be left out without changing the result."""
        ...


@dataclass(frozen=True, slots=True)
class Keys:
    """Typed look-ups in a parsed header or `config.json`. Errors name the key and the file."""

    values: Mapping[str, Any]
    where: str
    prefix: str = ""

    def whole(self, key: str, default: int | None = None, *, most: int = MAX_WIDTH, least: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, value, f"a whole number from {least} to {most}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def _get(self, key: str, default: T | None) -> Any:
        value = self.values.get(self.prefix + key)
        value = default if value is None else value
        if value is None:
            raise ImportFailed(
                f"{self.where} lacks {self.prefix + key}", hint="The model's configuration is incomplete"
            )
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> ImportFailed:
        shown = repr(value)[:60]
        return ImportFailed(
            f"{self.where}: {self.prefix + key} is {shown}, not {wanted}",
            hint="The model's configuration is damaged, or of a kind that is not supported",
        )
