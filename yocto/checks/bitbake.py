"""What BitBake says of the layer, together with the layers that it is built on."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from yocto.checks.finding import Finding
from yocto.checks.kas import BITBAKE, KasBuild, read_build
from yocto.checks.layer import Layer

CORE = "openembedded-core"

# Of what is built nothing but the answer: nothing is downloaded, nothing that others have cached is asked for, and
# there is nothing to clean up. So the answer depends on the layers alone. What the build itself has is said by
# yocto/kas, and stands in front of this.
_OFFLINE = """\
BB_NO_NETWORK = "1"
CONNECTIVITY_CHECK_URIS = ""
INHERIT:remove = "uninative rm_work"
BB_SIGNATURE_HANDLER = "OEBasicHash"
BB_HASHSERVE = ""
BB_NUMBER_THREADS = "{threads}"
BB_NUMBER_PARSE_THREADS = "{threads}"
BB_DISKMON_DIRS = ""
"""
# Of another distribution's systems those in which our recipes are not skipped. Where a machine's images are made by
# wic, what that is told has the list of layers in it, which no layer can be added to without changing it.
_OTHER_SYSTEM = 'INIT_MANAGER = "systemd"\nWICVARS:remove = "BBLAYERS"\n'


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A build folder for `machine`: what kas would put there, the layers that it reads, and those that are not
    there."""

    machine: str
    kas: KasBuild
    layers: tuple[Path, ...]
    missing: tuple[str, ...]


def plan_build(machine: str, layers: Path, own: Path, *, rauc: bool) -> Build:
    """Which of the clones below `layers` a build for `machine` reads. Raises `OSError`, `msgspec.ValidationError`."""
    kas = read_build(machine, rauc=rauc)
    missing = [name for name in kas.layers if not (layers / name / "conf/layer.conf").is_file()]
    if not (layers / BITBAKE / "bin/bitbake").is_file():
        missing.append(BITBAKE)
    return Build(
        machine=machine,
        kas=kas,
        layers=(*(layers / name for name in kas.layers), own),
        missing=tuple(missing),
    )


def write_configuration(
    build: Build, folder: Path, *, threads: int, other_system: bool = False, further: str = ""
) -> None:
    """The two files that a build folder needs; `other_system`: not for our distribution. `further` settings come
    last in local.conf. Raises `OSError`."""
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    system = _OTHER_SYSTEM if other_system else f'DISTRO = "{build.kas.distro}"\n'
    text = f'MACHINE = "{build.machine}"\n{system}{build.kas.settings}{_own_files(build, conf)}'
    conf.joinpath("local.conf").write_text(text + _OFFLINE.format(threads=threads) + further)
    listed = " \\\n".join(f"    {layer}" for layer in build.layers)
    conf.joinpath("bblayers.conf").write_text(
        f'LCONF_VERSION = "7"\nBBPATH = "${{TOPDIR}}"\nBBFILES ?= ""\nBBLAYERS = " \\\n{listed} \\\n"\n'
    )


def _own_files(build: Build, conf: Path) -> str:
    """Files of the builder's own, keys that is, which only have to be there: nothing is signed when recipes are
    parsed."""
    nothing = conf / "no-key.pem"
    nothing.touch()
    return "".join(f'{name} = "{nothing}"\n' for name in build.kas.files)


def run(
    arguments: Sequence[str], folder: Path, layers: Path, *, user: str | None, program: str = BITBAKE
) -> tuple[int, list[str]]:
    """Run BitBake, or another program of its world, in the build folder, as `user` where this is root; its status and
    what it printed."""
    script = (
        f'. "{layers / CORE}/oe-init-build-env" "{folder}" "{layers / BITBAKE}" >/dev/null && exec {program} "$@"'
    )
    environment = {**os.environ, "HOME": str(folder), "LC_ALL": "en_US.UTF-8", "PWD": str(layers / CORE)}
    # The script works out where it lies by the shell's folder.
    process = subprocess.Popen(
        ("bash", "-c", script, program, *arguments),
        cwd=layers / CORE,
        env=environment,
        user=user,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout as output:
        lines = [line.rstrip("\n") for line in output]
    return process.returncode, lines


def judge(build: Build, status: int, lines: Iterable[str], layer: Layer) -> tuple[list[Finding], list[str]]:
    """What BitBake's messages say of the layer, and the warnings that are about others."""
    own = {str(layer.root), *(recipe.name for recipe in layer.recipes)}
    # In messages a name stands alone, or as NAME_VERSION.bb, NAME-VERSION-rN, NAME-native.
    ends = r"(?=-\d|_\d|-native|[^\w-]|$)"
    ours = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}{ends}" for name in sorted(own)))
    findings, theirs = [], []
    for line in _whole(lines):
        if line.startswith("ERROR:") or (line.startswith("WARNING:") and ours.search(line)):
            findings.append(Finding(path=layer.root, message=f"{build.machine}: {line}"))
        elif line.startswith("WARNING:"):
            theirs.append(line)
    if status and not findings:
        findings.append(Finding(path=layer.root, message=f"{build.machine}: bitbake ended with status {status}"))
    return findings, theirs


def _whole(lines: Iterable[str]) -> list[str]:
    """Messages with the indented lines that go on with them."""
    told: list[str] = []
    for line in lines:
        if line.startswith("  ") and told:
            told[-1] += f" {line.strip()}"
        else:
            told.append(line)
    return told


def judge_compatible(machine: str, status: int, lines: Iterable[str], layer: Layer) -> list[Finding]:
    """What yocto-check-layer says of the layer: its failed tests, each with the first line of the reason."""
    told = [line.removeprefix("INFO: ") for line in lines]
    failed = [line for line in told if re.match(r"(FAIL|ERROR): test_", line)]
    failed += [line for line in told if re.match(r"\S+ \.\.\. (FAIL|SKIPPED \()", line)]
    if status == 0 and not failed and not any(line.endswith(" ... PASS") for line in told):
        failed = ["yocto-check-layer has not looked at the layer"]
    if status and not failed:
        failed = [f"yocto-check-layer ended with status {status}: {' '.join(told[-1:])}"]
    return [Finding(path=layer.root, message=f"{machine}: {line}") for line in failed]
