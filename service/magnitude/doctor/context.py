"""What the checks may look at. Everything that differs between machines is in here, so that tests replace it."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from magnitude.board import HostRoots
from magnitude.config import Settings
from magnitude.config.load import load
from magnitude.errors import ConfigError
from magnitude.paths import Paths, find_paths


class DoctorContext(msgspec.Struct, frozen=True, kw_only=True):
    """`python` is the interpreter that children are started with, `wall_clock` gives seconds since 1970,
    `monotonic` those of this boot. `looked` keeps what one check has looked at for the next one."""

    settings: Settings
    paths: Paths
    config_error: ConfigError | None = None
    notices: tuple[str, ...] = ()
    config_files: tuple[str, ...] = ()
    roots: HostRoots = HostRoots()
    machine: str = "x86_64"
    affinity: tuple[int, ...] = (0,)
    python: str = sys.executable
    wall_clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    looked: dict[str, object] = {}

    @property
    def models_folder(self) -> Path:
        return Path(self.settings.models.folder) if self.settings.models.folder else self.paths.models


def make_context(config: Path | None = None) -> DoctorContext:
    """The context of this machine. A broken configuration becomes a finding; the other checks go on without it."""
    paths = find_paths()
    try:
        loaded = load(config)
    except ConfigError as error:
        return _context(Settings(), paths, error, (), ())
    return _context(loaded.settings, paths, None, loaded.notices, loaded.files)


def _context(
    settings: Settings, paths: Paths, error: ConfigError | None, notices: tuple[str, ...], files: tuple[str, ...]
) -> DoctorContext:
    return DoctorContext(
        settings=settings,
        paths=paths,
        config_error=error,
        notices=notices,
        config_files=files,
        machine=platform.machine(),
        affinity=tuple(sorted(os.sched_getaffinity(0))),
    )
