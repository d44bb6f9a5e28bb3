"""`scripts/check-layer`: all checks of the layer, and which of them were left out."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from yocto.checks.bitbake import (
    CORE,
    Build,
    judge,
    judge_compatible,
    plan_build,
    run,
    write_configuration,
)
from yocto.checks.dependencies import check_requirements, check_resolved, check_tested, check_wheels, installed
from yocto.checks.finding import Finding
from yocto.checks.kas import machines
from yocto.checks.layer import CHECKOUT, Layer, read_layer, series
from yocto.checks.pins import check_pins, check_revision, why_no_history
from yocto.checks.sources import check_sources
from yocto.checks.upstream import check_upstream, missing_layers, read_upstream

# Each exception with its reason; everything else that the linter finds is a fault.
LINTER_OFF = {
    "oelint.vars.homepageping": "asks the network",
    "oelint.var.mandatoryvar.HOMEPAGE": "the project has no page beside its repository, wherever that is",
    "oelint.vars.inconspaces": "`+=` adds its own blank, which it does not see in lists",
    "oelint.var.mandatoryvar.SRC_URI": "a bundle is made of images; there is no source of its own",
    "oelint.vars.mispell.unknown": "it knows no variables of classes in other layers",
    "oelint.file.underscores": "what has no version of its own has none in its name",
    "oelint.var.filesoverride": "FILES of packages that hold one tree are said as a whole",
    "oelint.task.noanonpython": "skipping a recipe by its Python is done there, and nowhere else",
}


def sanity(layer: Layer, checkout: Path, core: Path | None = None) -> list[Finding]:
    """What the recipes say by themselves; milliseconds. Raises `OSError`."""
    listed = read_upstream()
    return sorted(
        [
            *check_sources(layer, checkout, core),
            *check_resolved(layer, listed),
            *check_requirements(layer, listed, checkout / "pyproject.toml"),
            *check_wheels(layer, listed),
            *check_pins(layer, checkout),
        ]
    )


def lint(layer: Layer) -> list[Finding] | None:
    """What oelint-adv finds; None where it is not installed."""
    beside = Path(sys.executable).parent / "oelint-adv"
    program = str(beside) if beside.is_file() else shutil.which("oelint-adv")
    if program is None:
        return None
    files = sorted(str(path) for suffix in ("bb", "bbappend") for path in layer.root.rglob(f"*.{suffix}"))
    suppressed = [word for rule in LINTER_OFF for word in ("--suppress", rule)]
    done = subprocess.run(
        (program, "--release", series(layer), "--quiet", "--relpaths", "--hide", "info", *suppressed, *files),
        cwd=layer.root,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode and not lines:
        lines = [f"oelint-adv ended with status {done.returncode}"]
    return [Finding(path=layer.root, message=line) for line in lines]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/check-layer", description="Check the Yocto layer; say what was left out."
    )
    parser.add_argument(
        "--layers",
        type=Path,
        metavar="DIR",
        help="folder with clones of bitbake, openembedded-core, meta-openembedded, meta-raspberrypi, meta-arm, "
        "meta-rockchip and meta-rauc: BitBake parses the layer with them",
    )
    parser.add_argument(
        "--machine",
        action="append",
        choices=machines(),
        help="only for this machine (more than once: for these)",
    )
    parser.add_argument("--without-rauc", action="store_true", help="leave updates and meta-rauc out")
    parser.add_argument("--dry-run", action="store_true", help="also `bitbake -n` of them, minutes for each machine")
    parser.add_argument(
        "--compatible",
        action="store_true",
        help="openembedded-core's yocto-check-layer in the place of BitBake by itself, half an hour for each machine",
    )
    parser.add_argument("--conf", type=Path, metavar="FILE", help="settings that come last in each local.conf")
    parser.add_argument(
        "--build", type=Path, metavar="DIR", help="folder for the build folders (default: build beside the layers)"
    )
    parser.add_argument("--user", help="run BitBake as this user; it refuses to run as root")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of BitBake")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 0 when nothing was found, 1 otherwise."""
    arguments = parse_arguments(words)
    layer = read_layer()
    layers = arguments.layers.resolve() if arguments.layers else None
    core = layers / CORE / "meta" if layers and (layers / CORE / "meta").is_dir() else None
    left_out: list[str] = []
    findings = [*sanity(layer, CHECKOUT, core)]
    untested, other_versions = check_tested(layer, read_upstream(), installed)
    findings += untested
    left_out += other_versions
    if reason := why_no_history(CHECKOUT):
        left_out.append(f"whether the pinned revision fits: {reason}")
    else:
        findings += check_revision(layer, CHECKOUT)
    print(f"recipes: {len(layer.recipes)} read", flush=True)
    linted = lint(layer)
    if linted is None:
        left_out.append("oelint-adv: not installed (pip install oelint-adv)")
    findings += linted or []
    if layers is None:
        left_out.append(f"BitBake for {', '.join(machines())}: no --layers")
        left_out.append("whether the layers below have what yocto/checks/upstream.yaml lists: no --layers")
    else:
        listed = read_upstream()
        findings += check_upstream(listed, layers)
        left_out += [f"what {name} has: not in {layers}" for name in missing_layers(listed, layers)]
        if os.geteuid() == 0 and arguments.user is None:
            left_out.append("BitBake: it does not run as root (--user NAME)")
        else:
            findings += _bitbake(arguments, layer, layers, left_out)
    for finding in findings:
        print(f"fault: {finding}")
    for text in left_out:
        print(f"left out: {text}")
    print("nothing was found" if not findings else f"{len(findings)} faults")
    return bool(findings)


def _bitbake(arguments: argparse.Namespace, layer: Layer, layers: Path, left_out: list[str]) -> list[Finding]:
    rauc = not arguments.without_rauc
    further = arguments.conf.read_text() if arguments.conf else ""
    findings: list[Finding] = []
    targets: Sequence[str] = ()
    for machine in arguments.machine or machines():
        build = plan_build(machine, layers, layer.root, rauc=rauc)
        targets = build.kas.targets
        if build.missing:
            left_out.append(f"BitBake for {machine}: there is no {', '.join(build.missing)} in {layers}")
            continue
        # One for each set of layers and features: what has been parsed is kept there.
        folder = (arguments.build or layers.parent / "build").resolve() / (machine if rauc else f"{machine}-plain")
        steps = [["-p"], ["-g", *targets]] + ([["-n", *targets]] if arguments.dry_run else [])
        if arguments.compatible:
            folder = folder.with_name(f"{folder.name}-compatible")
            # The layer must not be there yet: what others build is compared without it and with it.
            build = Build(machine=machine, kas=build.kas, layers=build.layers[:-1], missing=())
        write_configuration(
            build, folder, threads=arguments.threads, other_system=arguments.compatible, further=further
        )
        if arguments.user:
            for path in (folder.parent, folder, folder / "conf", *folder.joinpath("conf").iterdir()):
                shutil.chown(path, arguments.user)
        if arguments.compatible:
            findings += _compatible(build, folder, layers, layer, arguments.user)
        else:
            findings += _steps(build, steps, folder, layers, layer, arguments.user)
    if arguments.compatible:
        left_out.append(f"bitbake -p, -g and -n {' '.join(targets)}: run it again without --compatible")
    else:
        left_out.append("yocto-check-layer: no --compatible")
        if not arguments.dry_run:
            left_out.append(f"bitbake -n {' '.join(targets)}: no --dry-run")
    return findings


def _steps(
    build: Build, steps: list[list[str]], folder: Path, layers: Path, layer: Layer, user: str | None
) -> list[Finding]:
    findings: list[Finding] = []
    for step in steps:
        print(f"{build.machine}: bitbake {' '.join(step)}", flush=True)
        started_s = time.monotonic()
        status, lines = run(step, folder, layers, user=user)
        found, theirs = judge(build, status, lines, layer)
        print(f"  {time.monotonic() - started_s:.0f} s", flush=True)
        findings += found
        for line in theirs:
            print(f"  not ours: {line}")
        if status:
            break
    return findings


def _compatible(build: Build, folder: Path, layers: Path, layer: Layer, user: str | None) -> list[Finding]:
    print(f"{build.machine}: yocto-check-layer", flush=True)
    started_s = time.monotonic()
    # It looks for what the layer depends on among those that it is given, and not among those that the build has.
    below = [str(path) for path in build.layers]
    words = [str(layer.root), "--no-auto", "--no-auto-dependency", "--dependency", *below]
    status, lines = run(words, folder, layers, user=user, program="yocto-check-layer")
    print(f"  {time.monotonic() - started_s:.0f} s", flush=True)
    # What it compares is many lines, and all that a person has to find the reason of a difference by.
    folder.joinpath("yocto-check-layer.log").write_text("\n".join(lines) + "\n")
    return judge_compatible(build.machine, status, lines, layer)
