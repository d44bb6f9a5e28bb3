"""Build the Debian package of this checkout: `scripts/build-deb` starts this in the checkout's own environment.

By dpkg-deb, without debhelper: the kernels are compiled here and nothing else, nothing else may be stripped, and what
is left to describe are the few files in this folder. It works for arm64 on amd64 and the other way round, without
emulation.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from contents import glibc_minor, unmet, wrong_machine
from kernels_library import PLACE, WITHOUT, build_library, why_no_library
from left_out import trim_packages
from suites import MACHINES, SUITES, Suite, control, package_file, package_version, pip_target

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
# Where everything of ours lies in the package. `bin/python3` there is the system's, told by pyvenv.cfg to look for
# packages here and nowhere else.
LIBRARY = "usr/lib/magnitude"
CONFIG = "etc/magnitude/magnitude.yaml"
SCRIPTS = ("postinst", "postrm", "prerm")


class BuildFailed(Exception):
    """What went wrong."""


def build(suite: Suite, architecture: str, out: Path, *, fast: bool = False, kernels: bool = True) -> Path:
    """Build the package into the folder `out`; its path. Raises `BuildFailed`."""
    if kernels and (reason := why_no_library(MACHINES[architecture][0])):
        raise BuildFailed(f"{reason} (or build a slower package by --without-kernels)")
    version = _version()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".deb-") as work:
        # The package's root has to be open to everybody; temporary folders are not.
        root = Path(work) / "root"
        root.mkdir(mode=0o755)
        glibc = _install_packages(root, suite, architecture, Path(work), kernels=kernels)
        _install_command(root, suite)
        _install_units(root, suite)
        _install_texts(root, suite, version)
        _write_control(root, suite, architecture, version, glibc)
        target = out / package_file(version, suite, architecture)
        packed = ["-Zgzip", "-z1"] if fast else ["-Zxz"]
        _set_times(root)
        _run("dpkg-deb", "--build", "--root-owner-group", *packed, str(root), str(target))
    return target


def _install_packages(root: Path, suite: Suite, architecture: str, work: Path, *, kernels: bool) -> int:
    """Our wheel with the importers, and all that they require, as wheels for that system, and the library of kernels.
    The minor version of glibc that they ask for."""
    machine, number = MACHINES[architecture]
    site = root / LIBRARY / f"lib/python{suite.python}/site-packages"
    site.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run(*pip, "wheel", "--no-deps", WITHOUT, f"--wheel-dir={work}", str(CHECKOUT))
    (wheel,) = work.glob("*.whl")
    _run(
        *pip,
        "install",
        f"--target={site}",
        "--no-compile",
        "--no-warn-script-location",
        "--root-user-action=ignore",
        *pip_target(suite, architecture),
        f"{wheel}[import]",
    )
    trim_packages(site, image=False)
    if kernels:
        build_library(machine, site / PLACE, work / "headers", _run)
    if wrong := wrong_machine(root, number):
        raise BuildFailed(f"not for {architecture}: {', '.join(map(str, wrong))}")
    if missing := unmet(site, suite.python, machine):
        raise BuildFailed(f"packages for Python {suite.python} are missing:\n" + "\n".join(missing))
    glibc = glibc_minor(root)
    if glibc > suite.glibc_minor:
        raise BuildFailed(f"compiled code asks for glibc 2.{glibc}, {suite.name} has 2.{suite.glibc_minor}")
    return glibc


def _install_command(root: Path, suite: Suite) -> None:
    library = root / LIBRARY
    (library / "bin").mkdir()
    (library / "bin/python3").symlink_to(f"../../../bin/python{suite.python}")
    (library / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {suite.python}\n"
    )
    command = library / "bin/magnitude"
    command.write_text(
        f"#!/{LIBRARY}/bin/python3\nimport sys\n\nfrom magnitude.cli.main import run\n\nsys.exit(run())\n"
    )
    command.chmod(0o755)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/magnitude").symlink_to(f"../lib/magnitude/{command.relative_to(library)}")


def _install_units(root: Path, suite: Suite) -> None:
    """By the command that users have. The link that enables them is the maintainer scripts' to make."""
    options = ["--root", str(root), "--prefix", "/usr", "--systemd-version", str(suite.systemd)]
    options += ["--command", "/usr/bin/magnitude", "--no-enable"]
    _run(sys.executable, "-c", "from magnitude.cli.main import run; run()", "install-units", *options)
    # What dpkg knows by itself.
    (root / LIBRARY / "installed-units").unlink()


def _install_texts(root: Path, suite: Suite, version: str) -> None:
    config = root / CONFIG
    config.parent.mkdir(parents=True)
    shutil.copyfile(HERE / "magnitude.yaml", config)
    documents = root / "usr/share/doc/magnitude"
    (documents / "examples").mkdir(parents=True)
    shutil.copyfile(CHECKOUT / "config.example.yaml", documents / "examples/config.example.yaml")
    shutil.copyfile(HERE / "copyright", documents / "copyright")
    shutil.copyfile(HERE / "README.Debian", documents / "README.Debian")
    changes = (
        f"magnitude ({package_version(version, suite)}) {suite.name}; urgency=medium\n\n"
        f"  * Version {version}; its changes stand in changelog.gz.\n\n"
        f" -- {_maintainer()}  {_run('date', '--utc', '--rfc-email', f'--date=@{_epoch()}').strip()}\n"
    )
    for name, text in (("changelog.Debian.gz", changes), ("changelog.gz", (CHECKOUT / "CHANGELOG.md").read_text())):
        # Without a time in it, the same sources give the same bytes.
        (documents / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    overrides = root / "usr/share/lintian/overrides"
    overrides.mkdir(parents=True)
    shutil.copyfile(HERE / "lintian-overrides", overrides / "magnitude")


def _write_control(root: Path, suite: Suite, architecture: str, version: str, glibc: int) -> None:
    _set_modes(root)
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)
    size_kib = sum(-(-path.stat().st_size // 1024) for path in files)
    folder = root / "DEBIAN"
    folder.mkdir()
    (folder / "control").write_text(
        control(
            version,
            suite,
            architecture,
            glibc=glibc,
            size_kib=size_kib,
            maintainer=_maintainer(),
        )
    )
    (folder / "md5sums").write_text(sums)
    (folder / "conffiles").write_text(f"/{CONFIG}\n")
    shutil.copyfile(HERE / "templates", folder / "templates")
    for name in SCRIPTS:
        shutil.copyfile(HERE / name, folder / name)
        (folder / name).chmod(0o755)


def _set_modes(root: Path) -> None:
    """Wheels carry the modes of whoever built them."""
    for path in root.rglob("*"):
        if path.is_symlink():
            continue
        # Modules that begin with #! are only imported here, never run.
        runs = path.is_dir() or (path.stat().st_mode & 0o111 and "site-packages" not in path.parts)
        path.chmod(0o755 if runs else 0o644)


def _set_times(root: Path) -> None:
    at = _epoch()
    for path in [root, *root.rglob("*")]:
        os.utime(path, (at, at), follow_symlinks=False)


def _epoch() -> int:
    """When the sources were last changed: the same sources give the same package."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    return int(_run("git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct").strip())


def _maintainer() -> str:
    """Who builds the package answers for it: Debian's own variables, or git's settings."""
    name, email = os.environ.get("DEBFULLNAME"), os.environ.get("DEBEMAIL")
    if not name or not email:
        name, email = (_run("git", "-C", str(CHECKOUT), "config", f"user.{key}").strip() for key in ("name", "email"))
    return f"{name} <{email}>"


def _version() -> str:
    text = (CHECKOUT / "service/magnitude/__init__.py").read_text()
    found = re.search(r'(?m)^__version__ = "(.*)"$', text)
    assert found is not None
    return found[1]


def _run(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:]
        raise BuildFailed(f"{' '.join(command)[:300]} ended with status {done.returncode}:\n{said}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/build-deb", description="Build Debian packages of this checkout.")
    parser.add_argument("architectures", nargs="*", metavar="amd64|arm64", help="both unless named")
    parser.add_argument("--suite", choices=list(SUITES), action="append", help="all unless named")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "dist", help="where they go")
    parser.add_argument("--without-kernels", action="store_true", help="needs no compiler; decoders run slower")
    parser.add_argument("--fast", action="store_true", help="larger packages, sooner")
    options = parser.parse_args()
    for architecture in options.architectures:
        if architecture not in MACHINES:
            parser.error(f"unknown architecture {architecture}; known: {', '.join(MACHINES)}")
    # Folders and files of a package can be read by everybody.
    os.umask(0o022)
    try:
        for suite in options.suite or SUITES:
            for architecture in options.architectures or MACHINES:
                path = build(
                    SUITES[suite],
                    architecture,
                    options.out.absolute(),
                    fast=options.fast,
                    kernels=not options.without_kernels,
                )
                print(f"{path}  {path.stat().st_size / 1e6:.0f} MB", flush=True)
    except BuildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
