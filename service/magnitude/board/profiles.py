"""Which profiles there are, and which one is this board's.

A profile is a YAML file in `profiles/`, or anywhere else for a board that has none here yet.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

import msgspec
import yaml

from magnitude.board.profile import BoardProfile
from magnitude.board.roots import HostRoots
from magnitude.errors import ConfigError

FOLDER = Path(__file__).parent / "profiles"
GENERIC_ARM = "generic-arm"
GENERIC_X86 = "generic-x86"


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the service."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.yaml")))


def load_profile(name_or_path: str) -> BoardProfile:
    """The profile of that name, or in that file (anything with a `/` or ending in `.yaml`).

    Raises `ConfigError`, which says what is wrong in which file, and where.
    """
    if is_profile_path(name_or_path):
        return _read(Path(name_or_path))
    if name_or_path not in profile_names():
        raise ConfigError(
            f"there is no board {name_or_path!r}",
            hint=f"Boards are {', '.join(profile_names())}; a path to a YAML file names a profile of your own",
        )
    return _shipped(name_or_path)


def is_profile_path(name_or_path: str) -> bool:
    """Whether it is a file that is meant, and not a name."""
    return "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))


def find_profile(roots: HostRoots) -> BoardProfile:
    """The profile of the board below `roots`: by the names in its device tree, the most special one first, else the
    generic one of the architecture."""
    names = compatible(roots)
    profiles = [_shipped(name) for name in profile_names()]
    for name in names:
        for profile in profiles:
            if name in profile.compatible:
                return profile
    x86 = platform.machine().lower() in ("x86_64", "amd64", "i686") and not names
    return _shipped(GENERIC_X86 if x86 else GENERIC_ARM)


def compatible(roots: HostRoots) -> tuple[str, ...]:
    """What the device tree says that this board is, the most special name first; empty where there is none."""
    try:
        raw = (roots.proc / "device-tree" / "compatible").read_bytes()
    except OSError:
        return ()
    return tuple(name for name in raw.decode("utf-8", "replace").split("\0") if name)


def profile_of(name_or_path: str, roots: HostRoots) -> BoardProfile:
    """The profile that is asked for by name or file, or without one ("") that of the board found. Raises
    `ConfigError`."""
    return load_profile(name_or_path) if name_or_path else find_profile(roots)


def policy_name(profile: BoardProfile, cluster_index: int) -> str:
    """What the kernel calls that cluster's clock policy: after its first CPU."""
    return f"policy{min(profile.clusters[cluster_index].cpus)}"


@functools.cache
def _shipped(name: str) -> BoardProfile:
    return _read(FOLDER / f"{name}.yaml")


def _read(path: Path) -> BoardProfile:
    try:
        document: Any = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the board profile {path} cannot be read: {error.strerror}",
            hint=f"Boards that need no file are {', '.join(profile_names())}",
            param=str(path),
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(
            f"the board profile {path} is no YAML: {said}",
            hint="Compare it with one in board/profiles/",
            param=str(path),
        ) from error
    try:
        profile = msgspec.convert(document, BoardProfile)
        _check(profile)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(
            f"the board profile {path} is wrong: {error}",
            hint="board/profile.py says what each entry means; pi5-bare.yaml is a complete example",
            param=str(path),
        ) from error
    return profile


def _check(profile: BoardProfile) -> None:
    """What types cannot say. Raises `ValueError`."""
    cpus = [cpu for cluster in profile.clusters for cpu in cluster.cpus]
    if len(set(cpus)) != len(cpus) or not all(cluster.cpus for cluster in profile.clusters):
        raise ValueError("each CPU belongs to one cluster, and each cluster has one at least - at `$.clusters`")
    for index, cluster in enumerate(profile.clusters):
        clocks = [opp.khz for opp in cluster.opps]
        if clocks != sorted(set(clocks)):
            raise ValueError(f"clocks ascend and are there once - at `$.clusters[{index}].opps`")
    steps = [step.at_c for step in profile.fan]
    if steps != sorted(set(steps)):
        raise ValueError("fan steps ascend - at `$.fan`")
    if not profile.trips.soft_c < profile.trips.hard_c:
        raise ValueError("soft_c lies below hard_c - at `$.trips`")
    governor = profile.governor
    if not (governor.up_c < governor.target_c <= governor.down_c <= profile.trips.soft_c):
        raise ValueError("up_c < target_c <= down_c <= trips.soft_c - at `$.governor`")
    if max(profile.prefill_threads, profile.decode_threads) > len(cpus):
        raise ValueError(f"there are only {len(cpus)} CPUs - at `$.prefill_threads`, `$.decode_threads`")
