"""What is in the folder of Python packages: whether all of it fits the system it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def elf_files(folder: Path) -> Iterator[tuple[Path, int, bytes]]:
    """Compiled files below `folder`: path, machine as elf.h counts them, and content."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                start = file.read(20)
                if start[:4] == b"\x7fELF":
                    yield path, int.from_bytes(start[18:20], "little"), start + file.read()


def wrong_machine(folder: Path, machine: int) -> list[Path]:
    """Compiled files for another machine."""
    return [path for path, found, _ in elf_files(folder) if found != machine]


def glibc_minor(folder: Path) -> int:
    """The newest glibc 2.N that compiled files name in their symbol versions; 17 at least."""
    minors = {17}
    for _, _, content in elf_files(folder):
        minors |= {int(found) for found in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?\0", content)}
    return max(minors)


def unmet(site: Path, python: str, machine: str) -> list[str]:
    """What packages in `site` require and is not there. pip judges markers by the Python that it runs in, so what it
    chose for another one is checked again."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
    }
    found = {canonicalize_name(package.metadata["Name"]): package for package in distributions(path=[str(site)])}
    missing = []
    for package in found.values():
        for requirement in _requirements(package, environment):
            other = found.get(canonicalize_name(requirement.name))
            if other is None or not requirement.specifier.contains(other.version, prereleases=True):
                has = f"version {other.version} is there" if other else "it is not there"
                missing.append(f"{package.metadata['Name']} requires {requirement}: {has}")
    return sorted(missing)


def _requirements(package: Distribution, environment: dict[str, str]) -> Iterator[Requirement]:
    """What is required in `environment`; of ours with the importers, of others without extras."""
    extra = "import" if canonicalize_name(package.metadata["Name"]) == "magnitude" else ""
    for text in package.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra}):
            yield requirement
