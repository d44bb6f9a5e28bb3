"""Reading the configuration: one YAML file, then `conf.d/*.yaml` beside it in the order of their names.

Later files win: maps are merged key by key, lists and values are replaced. Which file: `--config`, else
`MAGNITUDE_CONFIG`, else `/etc/magnitude/magnitude.yaml` (or the person's own). Only the last may be missing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import yaml

from magnitude.board.profiles import is_profile_path
from magnitude.config import typed
from magnitude.config.address import parse_listen
from magnitude.config.document import MapNode, Node, Place, Scalar, merge, parse, resolve_scalar
from magnitude.config.settings import Settings
from magnitude.errors import ConfigError
from magnitude.governor.memory_ladder import wrong_thresholds
from magnitude.governor.power import wrong_percents
from magnitude.paths import config_path

# Values that name files: a relative one is relative to the file it stands in, wherever the service is started.
PATH_KEYS = (("engine", "model_path"), ("models", "folder"), ("server", "unix_socket"), ("board", "profile"))

# Windows of 10 made strategies oscillate in the field, 50 worked, 100 was safe. Below 20 none is accepted.
SHORT_WINDOW = 50


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, the files they came from (in reading order), and what the reader should know about them."""

    settings: Settings
    files: tuple[str, ...]
    notices: tuple[str, ...]


def load(
    path: Path | str | None = None, environ: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> Loaded:
    """Read the configuration of this process. `overrides` are `section.key=value` texts that win over every file.

    Raises `ConfigError`.
    """
    environ = os.environ if environ is None else environ
    named = path or environ.get("MAGNITUDE_CONFIG")
    main = Path(named) if named else config_path(environ)
    documents: list[MapNode] = []
    files: list[str] = []
    fragments = sorted((main.parent / "conf.d").glob("*.yaml"))
    for file in (main, *fragments):
        text = _read(file, optional=not named and file is main)
        if text is not None:
            documents.append(_with_absolute_paths(parse(text, str(file)), file.parent))
            files.append(str(file))
    documents += [_override(text) for text in overrides]
    return _loaded(documents, files)


def load_text(text: str, name: str = "configuration") -> Loaded:
    """Settings from one document; paths stay as written. Raises `ConfigError`."""
    return _loaded([parse(text, name)], [name])


def effective(settings: Settings) -> str:
    """All settings, the defaults too, as YAML that `load` reads back to the same settings."""
    document = yaml.dump(
        msgspec.to_builtins(settings), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110
    )
    return str(document)


def notices(settings: Settings) -> tuple[str, ...]:
    """What is accepted but does not do yet what a reader may expect."""
    said: list[str] = []
    if settings.agent is not None:
        said.append("agent: is read and checked, but not active yet: this version runs no agent")
    if settings.engine.optimization_window < SHORT_WINDOW:
        said.append(
            f"engine.optimization_window of {settings.engine.optimization_window} is short: strategies oscillate "
            "below about 50, and 100 is recommended"
        )
    return tuple(said)


def _loaded(documents: list[MapNode], files: list[str]) -> Loaded:
    root = parse("", files[0] if files else "configuration")
    for document in documents:
        root = merge(root, document)
    settings = typed.build(root, Settings)
    _check(settings)
    return Loaded(settings=settings, files=tuple(files), notices=notices(settings))


def _override(text: str) -> MapNode:
    """The document that `section.key=value` stands for; the value is read as YAML."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    place = Place(f"--set {key}", 1)
    if not equals or not all(parts):
        raise ConfigError(f"--set {text} is no KEY=VALUE", hint="Write for example --set engine.threads=2", param=key)
    node: Node = parse(f"value: {value}", place.file).items["value"]
    for part in reversed(parts):
        node = MapNode(place=place, items={part: node}, key_places={part: place})
    assert isinstance(node, MapNode)  # there is at least one part
    return node


def _check(settings: Settings) -> None:
    """What types cannot say."""
    parse_listen(settings.server.listen)
    names = [key.name for key in settings.server.api_keys]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"server.api_keys has two keys with the name {twice!r}",
            hint="Give each key a name of its own: accounts and logs go by it",
            param="server.api_keys",
        )
    wrong = wrong_thresholds(settings.memory.thresholds_percent)
    if wrong is not None:
        raise ConfigError(
            f"memory.thresholds_percent is {settings.memory.thresholds_percent}: {wrong}",
            hint="Write for example [78, 82, 86, 90, 93, 96], or [] for the defaults",
            param="memory.thresholds_percent",
        )
    test = settings.policy.field_test
    if test.share is not None and not test.name:
        raise ConfigError(
            "policy.field_test has a share but no name: no device would take part",
            hint='Add a name that this test alone has, for example `name: "autumn"`, or take the share out',
            param="policy.field_test.name",
        )
    power = settings.power
    wrong = wrong_percents(power.battery_saving_percent, power.battery_least_percent)
    if wrong is not None:
        raise ConfigError(
            f"power.battery_least_percent is above power.battery_saving_percent: {wrong}",
            hint="Write for example 30 for saving and 15 for least",
            param="power.battery_least_percent",
        )


def _read(file: Path, *, optional: bool) -> str | None:
    try:
        return file.read_text("utf-8-sig")
    except FileNotFoundError:
        if optional:
            return None
        raise ConfigError(
            f"{file} does not exist", hint="Check --config and MAGNITUDE_CONFIG", param=str(file)
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text", hint="Save it as UTF-8", param=str(file)) from error
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}", hint="Check its owner and mode", param=str(file)
        ) from error


def _with_absolute_paths(root: MapNode, folder: Path) -> MapNode:
    for section_name, key in PATH_KEYS:
        section = root.items.get(section_name)
        if not isinstance(section, MapNode):
            continue
        node = section.items.get(key)
        if section_name == "board" and not (isinstance(node, Scalar) and is_profile_path(node.written)):
            continue  # a name
        if isinstance(node, Scalar) and node.kind == "text" and node.written:
            absolute = str(folder.absolute() / Path(node.written).expanduser())
            item = msgspec.structs.replace(node, value=os.path.normpath(absolute))
            section = msgspec.structs.replace(section, items={**section.items, key: item})
            root = msgspec.structs.replace(root, items={**root.items, section_name: section})
    return root


class _Dumper(yaml.SafeDumper):
    """Quotes what our reader would take for something other than text, and what has to be escaped."""


def _dump_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = resolve_scalar(text, quoted=False)[0] == "text" and text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _dump_text)
