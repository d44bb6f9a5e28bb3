"""Where models, state, run-time files and the configuration lie.

`MAGNITUDE_HOME` puts everything below one folder (`scripts/run` and tests use it). Otherwise systemd's
STATE_DIRECTORY, CACHE_DIRECTORY, RUNTIME_DIRECTORY and CONFIGURATION_DIRECTORY are followed; otherwise root gets the
system's folders and a person the XDG ones. Nothing here creates a folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

SYSTEM_CONFIG = Path("/etc/magnitude/magnitude.yaml")


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Folders of one installation. `run` is emptied at boot, `state` is not."""

    models: Path
    state: Path
    cache: Path
    run: Path
    config: Path

    @property
    def unix_socket(self) -> Path:
        return self.run / "magnitude.sock"


def find_paths(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Paths:
    """The folders for this user and environment."""
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    if home := environ.get("MAGNITUDE_HOME"):
        base = Path(home).absolute()
        return Paths(
            models=base / "models",
            state=base / "state",
            cache=base / "cache",
            run=base / "run",
            config=_named_config(environ) or base / "magnitude.yaml",
        )
    person = Path(environ.get("HOME") or "~").expanduser()
    if uid == 0:
        state, cache = Path("/var/lib/magnitude"), Path("/var/cache/magnitude")
        run, config = Path("/run/magnitude"), SYSTEM_CONFIG
    else:
        state = _xdg(environ, "XDG_DATA_HOME", person / ".local/share")
        cache = _xdg(environ, "XDG_CACHE_HOME", person / ".cache")
        run = _xdg(environ, "XDG_RUNTIME_DIR", person / ".local/state")
        config = _xdg(environ, "XDG_CONFIG_HOME", person / ".config") / "magnitude.yaml"
        if not config.exists() and SYSTEM_CONFIG.exists():
            config = SYSTEM_CONFIG
    state = _systemd(environ, "STATE_DIRECTORY") or state
    cache = _systemd(environ, "CACHE_DIRECTORY") or cache
    run = _systemd(environ, "RUNTIME_DIRECTORY") or run
    if configured := _systemd(environ, "CONFIGURATION_DIRECTORY"):
        config = configured / "magnitude.yaml"
    config = _named_config(environ) or config
    return Paths(models=state / "models", state=state, cache=cache, run=run, config=config)


def config_path(environ: Mapping[str, str] | None = None) -> Path:
    """The configuration file for this user and environment; it need not exist."""
    return find_paths(environ).config


def _named_config(environ: Mapping[str, str]) -> Path | None:
    named = environ.get("MAGNITUDE_CONFIG")
    return Path(named).absolute() if named else None


def _xdg(environ: Mapping[str, str], name: str, fallback: Path) -> Path:
    """The specification says to ignore relative values."""
    value = environ.get(name, "")
    return (Path(value) if value.startswith("/") else fallback) / "magnitude"


def _systemd(environ: Mapping[str, str], name: str) -> Path | None:
    """systemd lists several folders with colons between; the first is the unit's main one."""
    value = environ.get(name, "").split(":")[0]
    return Path(value) if value.startswith("/") else None
