"""Builds an image of Magnitude on Debian that QEMU boots, and updates for it.

scripts/build-guest amd64
scripts/build-guest amd64 --bundle --version 1.2.3
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from image.debian.kernels_library import build_library, why_no_library
from image.guest import file_systems, qemu, tree, workshop
from image.guest.bundle import make_bundle, make_key
from image.guest.debian import (
    CHECKOUT,
    MACHINES,
    BuildFailed,
    build_wheel,
    cached,
    contents,
    dependencies,
    drop_old,
    key_of,
    only_one,
    own_architecture,
    run,
)
from image.guest.partitions import MIB, layout, write_disk
from image.guest.recipe import recipe_of
from image.guest.workshop import Workshop

MODELS = ("smollm2-135m-instruct", "all-minilm-l6-v2")
NEEDED = ("mmdebstrap", "modprobe", "depmod", "cpio", "dpkg-deb", "apt-get", "unshare")
# Room for twice today's root with both models.
SLOT_MIB = 1024
# Room for an update and its user's own things; on a real disk it is grown.
DATA_MIB = 1024
# A base that nobody has asked for so long is deleted when the next one is made.
KEEP_S = 7 * 24 * 3600.0
CONFIG = """\
# Written by scripts/build-guest: the port that QEMU forwards needs a key. The key itself lies beside the image.
server:
  api_keys:
    - name: qemu
      sha256: {digest}
"""


class Built(NamedTuple):
    """What a build has made. `root_bytes`: the files of the root, without models."""

    image: Path | None
    bundle: Path | None
    api_key: str
    root_bytes: int
    slot_image_bytes: int


class Parts(NamedTuple):
    """What is kept between builds."""

    workshop: Workshop
    base: Path
    site: Path
    boot: Path


def cache_folder() -> Path:
    """Where bases are kept: below `$MAGNITUDE_HOME`, or the checkout's."""
    home = os.environ.get("MAGNITUDE_HOME")
    return (Path(home) if home else CHECKOUT / ".magnitude") / "guest-build"


def why_not(architecture: str) -> str:
    """Why this machine cannot build the image; empty when it can."""
    if os.geteuid() != 0:
        return "it needs root: files of the image belong to root, and to the service's own user"
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        return f"{', '.join(missing)} not found: apt-get install mmdebstrap kmod cpio"
    if reason := why_no_library(MACHINES[architecture]):
        return reason
    foreign = architecture != own_architecture()
    handler = Path("/proc/sys/fs/binfmt_misc") / f"qemu-{MACHINES[architecture]}"
    if foreign and not handler.exists():
        return (
            f"this machine does not run programs for {architecture}: apt-get install qemu-user-static, and where "
            f"systemd does not run, write /usr/lib/binfmt.d/{handler.name}.conf to {handler.parent}/register"
        )
    return ""


class Keys(NamedTuple):
    """What the parts of `Parts` are kept under: each changes with all that its part is made of. (What is fetched from
    the archives is not told apart; `KEEP_S` says how long it may lie.)"""

    tools: str
    base: str
    site: str
    boot: str


def keys_of(architecture: str) -> Keys:
    """The keys of what this checkout makes for `architecture`; tools are this machine's own, whatever is made with
    them."""

    def of(step: Callable[..., object], *further: str) -> str:
        # How a program is started, and what is said when it fails, changes nothing about what it makes.
        return key_of(*recipe_of(step, without=(run, BuildFailed)), *further)

    base = of(tree.make_base, architecture)
    return Keys(
        tools=of(workshop.make_workshop, tree.SUITE),
        base=base,
        # For the Python that is in the base.
        site=of(tree.make_site, base, *dependencies("import")),
        boot=of(tree.fetch_boot_parts, architecture, *contents([tree.FILES / "init"])),
    )


def kept_parts(cache: Path, architecture: str) -> Parts:
    """Tools, base, Python packages and kernel, from the cache or made now. Raises `BuildFailed`."""
    keys = keys_of(architecture)
    with only_one(cache):
        drop_old(cache, KEEP_S)
        tools = cached(
            cache / f"tools-{tree.SUITE}-{keys.tools}", lambda folder: workshop.make_workshop(folder, tree.SUITE)
        )
        base = cached(cache / f"base-{architecture}-{keys.base}", lambda folder: tree.make_base(folder, architecture))
        site = cached(
            cache / f"site-{architecture}-{keys.site}", lambda folder: tree.make_site(folder, base, architecture)
        )
        boot = cached(
            cache / f"boot-{architecture}-{keys.boot}", lambda folder: tree.fetch_boot_parts(folder, architecture)
        )
    return Parts(Workshop(tools), base, site, boot)


def build(
    architecture: str,
    out: Path,
    *,
    models: Sequence[Path] = (),
    overlay: Path | None = None,
    version: str | None = None,
    bundle: bool = False,
    slot_mib: int = SLOT_MIB,
    data_mib: int = DATA_MIB,
    edit: Callable[[Path], None] | None = None,
) -> Built:
    """Build an image into the folder `out`, or an update for one that was built there. `edit` changes a copy of the
    service's sources first. Raises `BuildFailed`."""
    if reason := why_not(architecture):
        raise BuildFailed(reason)
    cache = cache_folder()
    parts = kept_parts(cache, architecture)
    out.mkdir(parents=True, exist_ok=True)
    name = f"magnitude-guest-{architecture}"
    keyring = make_key(parts.workshop, out)
    api_key = _api_key(out / "api-key")
    with tempfile.TemporaryDirectory(dir=cache) as work_name:
        work = Path(work_name)
        wheel = build_wheel(work / "wheel", version=version, edit=edit)
        build_library(MACHINES[architecture], work / "kernels.so", cache / "onnxruntime-headers", run)
        root = work / "tree"
        root.mkdir()
        tree.make_tree(
            root, parts.base, parts.site, parts.boot, wheel.parent, work / "kernels.so", parts.workshop, architecture,
            keyring=keyring, models=models, overlay=overlay,
        )  # fmt: skip
        root_bytes = file_systems.used_bytes(root) - file_systems.used_bytes(root / tree.MODELS)
        # A finding fails the build: no image leaves it that makes devices alike or lets somebody in.
        run(sys.executable, CHECKOUT / "scripts/check-image", root)
        file_systems.make_root_image(parts.workshop, work, "tree", "rootfs.ext4")
        shutil.rmtree(root)
        slot_image_bytes = (work / "rootfs.ext4").stat().st_size
        if slot_image_bytes > slot_mib * MIB:
            raise BuildFailed(
                f"the root takes {slot_image_bytes // MIB} MiB: more than the slots' {slot_mib} MiB. --slot-mib "
                "makes them larger"
            )
        if bundle:
            made = version or wheel.name.split("-")[1]
            target = out / f"{name}-{made}.raucb"
            make_bundle(parts.workshop, work, "rootfs.ext4", target, out, architecture, made)
            return Built(None, target, api_key, root_bytes, slot_image_bytes)
        partitions = layout(slot_mib * MIB, data_mib * MIB)
        boot = partitions[0]
        config = CONFIG.format(digest=hashlib.sha256(api_key.encode()).hexdigest())
        file_systems.make_data_image(parts.workshop, work, "data.ext4", data_mib * MIB, config)
        file_systems.make_boot_image(
            parts.workshop, work, "boot.fat", boot.size_bytes, architecture, parts.boot / "grub"
        )
        images = {"boot": "boot.fat", "root-a": "rootfs.ext4", "data": "data.ext4"}
        write_disk(parts.workshop, work, "disk.img", partitions, images)
        # As a whole, or not at all; and sparse, also on another file system.
        unfinished = out / f"{name}.img.unfinished"
        _move_sparse(work / "disk.img", unfinished)
        unfinished.rename(out / f"{name}.img")
    return Built(out / f"{name}.img", None, api_key, root_bytes, slot_image_bytes)


def _move_sparse(source: Path, target: Path) -> None:
    run("cp", "--sparse=always", "--reflink=auto", source, target)
    source.unlink()


def _api_key(path: Path) -> str:
    """The key for the forwarded port, made at the first build."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(24) + "\n")
    return path.read_text().strip()


def own_models() -> list[Path]:
    """The embedded models, as `scripts/test` or `scripts/run` imported them. Raises `BuildFailed`."""
    home = os.environ.get("MAGNITUDE_HOME")
    folder = (Path(home) if home else CHECKOUT / ".magnitude") / "models"
    models = [folder / name for name in MODELS]
    if missing := [model for model in models if not (model / "manifest.json").is_file()]:
        raise BuildFailed(
            f"{', '.join(map(str, missing))} not there: scripts/test fetches and imports the embedded models; "
            "--no-models leaves them out, --model FOLDER takes others"
        )
    return models


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/build-guest",
        description="Build an image of Magnitude on Debian that QEMU boots, or an update for it. Needs root.",
    )
    parser.add_argument("architecture", choices=sorted(MACHINES))
    parser.add_argument("--out", type=Path, metavar="DIR", help="where image and keys go (build/guest-ARCHITECTURE)")
    parser.add_argument("--version", help="number the service so, instead of the checkout's own version")
    parser.add_argument(
        "--bundle", action="store_true", help="make an update for the image in DIR instead of an image"
    )
    parser.add_argument("--model", type=Path, action="append", metavar="FOLDER", help="put this model into the image")
    parser.add_argument("--no-models", action="store_true", help="leave the embedded models out")
    parser.add_argument("--slot-mib", type=int, default=SLOT_MIB, help="size of each of the two slots")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    """The program; its exit status."""
    asked = _arguments(given)
    out = (asked.out or CHECKOUT / "build" / f"guest-{asked.architecture}").absolute()
    try:
        models = asked.model or ([] if asked.no_models else own_models())
        built = build(
            asked.architecture,
            out,
            models=models,
            version=asked.version,
            bundle=asked.bundle,
            slot_mib=asked.slot_mib,
        )
    except BuildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Root: {built.root_bytes / MIB:.0f} MiB without models, {built.slot_image_bytes / MIB:.0f} MiB as a slot")
    if built.bundle:
        print(f"Update: {built.bundle}\nIn the guest: rauc install /data/{built.bundle.name}")
    if built.image:
        print(f"Image: {built.image}\nBoot it:\n\n  {qemu.command(asked.architecture, built.image)}\n")
        print(f"Ask it:\n\n  curl -H 'Authorization: Bearer {built.api_key}' http://127.0.0.1:{qemu.PORT}/v1/models")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
