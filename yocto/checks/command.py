"""`scripts/check-layer`: all checks of the layer, and which of them were left out."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from yocto.checks.bitbake import CORE, IMAGE, MACHINES, judge, plan_build, run, write_configuration
from yocto.checks.dependencies import check_requirements, check_resolved, check_wheels
from yocto.checks.finding import Finding
from yocto.checks.layer import CHECKOUT, Layer, read_layer
from yocto.checks.pins import check_pins, check_revision
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
RELEASE = "wrynose"


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
        (program, "--release", RELEASE, "--quiet", "--relpaths", "--hide", "info", *suppressed, *files),
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
        choices=sorted(MACHINES),
        help="only for this machine (more than once: for these)",
    )
    parser.add_argument("--without-rauc", action="store_true", help="leave updates and meta-rauc out")
    parser.add_argument("--dry-run", action="store_true", help=f"also `bitbake -n {IMAGE}`, minutes for each machine")
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
    if (CHECKOUT / ".git").exists():
        findings += check_revision(layer, CHECKOUT)
    else:
        left_out.append("whether the pinned revision exists: this is no git repository")
    print(f"recipes: {len(layer.recipes)} read", flush=True)
    linted = lint(layer)
    if linted is None:
        left_out.append("oelint-adv: not installed (pip install oelint-adv)")
    findings += linted or []
    if layers is None:
        left_out.append(f"BitBake for {', '.join(MACHINES)}: no --layers")
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
    findings: list[Finding] = []
    for machine in arguments.machine or MACHINES:
        build = plan_build(machine, layers, layer.root, rauc=rauc)
        if build.missing:
            left_out.append(f"BitBake for {machine}: there is no {', '.join(build.missing)} in {layers}")
            continue
        folder = (arguments.build or layers.parent / "build").resolve() / machine
        write_configuration(build, folder, rauc=rauc, threads=arguments.threads)
        if arguments.user:
            for path in (folder.parent, folder, folder / "conf", *folder.joinpath("conf").iterdir()):
                shutil.chown(path, arguments.user)
        steps = [["-p"], ["-g", IMAGE]] + ([["-n", IMAGE]] if arguments.dry_run else [])
        for step in steps:
            print(f"{machine}: bitbake {' '.join(step)}", flush=True)
            status, lines = run(step, folder, layers, user=arguments.user)
            found, theirs = judge(build, status, lines, layer)
            findings += found
            for line in theirs:
                print(f"  not ours: {line}")
            if status:
                break
    if not arguments.dry_run:
        left_out.append(f"bitbake -n {IMAGE}: no --dry-run")
    return findings
