"""A load: which agents ask what of which model, and how long they are away in between. Files in `loads/`, or one's
own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from magnitude.board.workload import ModelCost
from magnitude.errors import ConfigError

FOLDER = Path(__file__).parent / "loads"

NotNegative = Annotated[float, Meta(ge=0)]


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure that differs from time to time: a triangle over `low` to `high` with its top at `mode`."""

    low: NotNegative
    mode: NotNegative
    high: NotNegative


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model by its size: bytes of weights read for a step, weights that take part in a token, KV bytes a token."""

    name: str
    weight_bytes: Annotated[float, Meta(gt=0)]
    parameters: Annotated[float, Meta(gt=0)]
    kv_bytes_per_token: NotNegative

    def cost(self, past_tokens: int) -> ModelCost:
        """What a token costs after so many others."""
        return ModelCost(
            weight_bytes=self.weight_bytes,
            macs_per_token=self.parameters,
            kv_bytes_per_token=self.kv_bytes_per_token,
            past_tokens=past_tokens,
        )


class AgentKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` agents that work through tasks of `turns` turns. What they said before is not read again (it is in the
    KV cache), nor are the `cached_tokens` that all tasks share. A task begins with `task_tokens` to read; later turns
    add `turn_tokens`, a tool's answer. Each turn writes `answer_tokens`, then the agent is away for `wait_s` (its
    tool), after a task for `rest_s`."""

    count: Annotated[int, Meta(ge=1, le=64)]
    turns: Annotated[int, Meta(ge=1)]
    cached_tokens: Annotated[int, Meta(ge=0)] = 0
    task_tokens: Spread
    turn_tokens: Spread
    answer_tokens: Spread
    wait_s: Spread
    rest_s: Spread


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a board. `slots` generations run at once at most; `piece_tokens` of a prompt enter after each
    decode step while answers run. The same `seed` gives the same load."""

    name: str
    title: str
    model: LoadModel
    agents: Annotated[tuple[AgentKind, ...], Meta(min_length=1)]
    slots: Annotated[int, Meta(ge=1, le=64)] = 4
    piece_tokens: Annotated[int, Meta(ge=1, le=4096)] = 32
    seed: int = 1


def load_names() -> tuple[str, ...]:
    """Names of the loads that come with the service."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


def read_load(name_or_path: str) -> Load:
    """The load of that name (with or without `.yaml`), or in that file. Raises `ConfigError`."""
    stem = name_or_path.removesuffix(".yaml")
    path = Path(name_or_path)
    if stem in load_names() and not path.exists():
        return _shipped(stem)
    if not path.exists():
        raise ConfigError(
            f"there is no load {name_or_path!r}",
            hint=f"Loads are {', '.join(load_names())}; any other is a path to a YAML file",
        )
    return _read(path)


@functools.cache
def _shipped(name: str) -> Load:
    return _read(FOLDER / f"{name}.yaml")


def _read(path: Path) -> Load:
    hint = "simulate/load.py says what each entry means; agent.yaml is a complete example"
    try:
        document: Any = yaml.safe_load(path.read_text("utf-8"))
        load = msgspec.convert(document, Load)
        _check(load)
    except OSError as error:
        raise ConfigError(f"the load {path} cannot be read: {error.strerror}", hint=hint, param=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"the load {path} is no YAML: {said}", hint=hint, param=str(path)) from error
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"the load {path} is wrong: {error}", hint=hint, param=str(path)) from error
    return load


def _check(load: Load) -> None:
    """What types cannot say. Raises `ValueError`."""
    for index, kind in enumerate(load.agents):
        for name in ("task_tokens", "turn_tokens", "answer_tokens", "wait_s", "rest_s"):
            spread: Spread = getattr(kind, name)
            if not spread.low <= spread.mode <= spread.high:
                raise ValueError(f"low <= mode <= high - at `$.agents[{index}].{name}`")
        if kind.answer_tokens.low < 1:
            raise ValueError(f"an answer has one token at least - at `$.agents[{index}].answer_tokens`")
