"""For what packages are built, and how they are called."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """A release of Debian (and the Raspberry Pi OS that is made from it): what compiled packages have to fit."""

    name: str
    number: int
    python: str
    systemd: int
    glibc_minor: int


# One package a release, not one for all: a wheel with compiled code fits one Python only, unless it uses the stable
# ABI. Half of ours do not, the largest ones among them (ONNX Runtime, NumPy).
SUITES = {
    suite.name: suite
    for suite in (
        Suite("bookworm", 12, "3.11", systemd=252, glibc_minor=36),
        Suite("trixie", 13, "3.13", systemd=257, glibc_minor=41),
    )
}

# Debian's name of an architecture → Python's, and the number in ELF headers (elf.h, EM_…).
MACHINES = {"amd64": ("x86_64", 62), "arm64": ("aarch64", 183)}

# manylinux_2_N: the glibc that a wheel was built against. These are in use.
_GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34, 35, 36, 39)


def package_version(version: str, suite: Suite) -> str:
    """For example `0.1.0-1~deb12`. The one for a later release is the higher one, so that an upgrade of the system
    brings it along; pre-releases sort before the release as Python and Debian both mean it."""
    public, _, local = version.partition("+")
    upstream = re.sub(r"\.?(dev|a|b|rc)(\d+)", r"~\1\2", public) + (f"+{local}" if local else "")
    return f"{upstream}-1~deb{suite.number}"


def package_file(version: str, suite: Suite, architecture: str) -> str:
    return f"magnitude_{package_version(version, suite)}_{architecture}.deb"


def pip_target(suite: Suite, architecture: str) -> list[str]:
    """Options with which pip takes wheels for that system, whatever it runs on itself."""
    machine, _ = MACHINES[architecture]
    options = ["--only-binary=:all:", f"--python-version={suite.python}", "--implementation=cp"]
    options += [f"--abi={abi}" for abi in ("cp" + suite.python.replace(".", ""), "abi3", "none")]
    # pip takes the first that fits, so the newest come first.
    for minor in sorted(_GLIBC_MINORS, reverse=True):
        if minor <= suite.glibc_minor:
            options.append(f"--platform=manylinux_2_{minor}_{machine}")
    return [*options, f"--platform=manylinux2014_{machine}", f"--platform=linux_{machine}"]


def control(version: str, suite: Suite, architecture: str, *, glibc: int, size_kib: int, maintainer: str) -> str:
    """The control file. `glibc` is the minor version that the compiled code asks for."""
    depends = [
        f"python{suite.python}",
        f"libc6 (>= 2.{glibc})",
        "libgcc-s1",
        "libstdc++6",
        "libudev1",
        "zlib1g",
        f"systemd (>= {suite.systemd})",
        "init-system-helpers (>= 1.54~)",
        "debconf (>= 0.5) | debconf-2.0",
    ]
    return f"""\
Package: magnitude
Version: {package_version(version, suite)}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {size_kib}
Depends: {", ".join(depends)}
Recommends: udev
Section: net
Priority: optional
Description: self-optimising inference service for AI agents on edge boards
 Serves language models and embeddings to agents on the same board, through the
 OpenAI API on a unix socket and on the loopback interface. It measures how work
 runs on this board, changes how it is run, and keeps within heat, memory and
 supply.
 .
 The package brings its Python packages along, below /usr/lib/magnitude, and
 touches none of the system's. It contains no models.
"""
