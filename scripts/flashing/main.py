"""`scripts/flash`: the command line, the questions, and the order of things."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from flashing.block_devices import Roots, read_snapshot
from flashing.boot_files import FOLDER, BootFile, put_boot_files, read_boot_files, require_mtools
from flashing.card import Card, require_permission
from flashing.copying import Watch, write_image
from flashing.image import Image, open_image
from flashing.progress import Progress
from flashing.rules import Wish, candidates, device_named, partitions_of, refusal, to_unmount, uses
from flashing.terms import INTERRUPTED, REFUSED, BlockDevice, FlashError, Snapshot, readable_bytes

EPILOG = """\
Without DEVICE it lists the removable disks and asks. It never writes to a disk that the running system is on.
A block map (IMAGE.bmap) beside the image is used, by bmaptool where that is installed. What was written is read back
from the card and compared.

exit status: 0 the card is right; 1 refused, nothing was written; 2 wrong usage; 3 writing failed; 4 the card gave
back something else than was written; 5 the image is on the card, the files are not; 130 interrupted
"""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str], roots: Roots | None = None) -> int:
    """Run the program; its exit status. `roots` are the kernel's, unless a test brings others."""
    options = _parser().parse_args(arguments)
    # What has been begun is brought into a state that can be named. SIGINT as well, because a shell that starts
    # programs in the background has it ignored.
    before = {number: signal.signal(number, _interrupt) for number in _ENDING}
    try:
        _flash(options, roots or Roots())
    except FlashError as error:
        # Below the line with the progress, where there is one.
        start = "\n" if error.status != REFUSED and sys.stderr.isatty() else ""
        print(f"{start}error: {error}\n  {error.hint}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("\nInterrupted. Nothing was written.", file=sys.stderr)
        return INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/flash",
        description="Write an image to a memory card or a USB disk, and read it back.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("image", type=Path, metavar="IMAGE", help=".img or .wic, also as .gz, .xz or .zst")
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="the whole disk, for example /dev/sdb")
    parser.add_argument("--config", type=Path, metavar="FILE", help="becomes magnitude.yaml of the board")
    parser.add_argument(
        "--ssh-key", type=Path, metavar="FILE", action="append", default=[], help="public key that may log in"
    )
    parser.add_argument("--wifi", type=Path, metavar="FILE", help="wifi.yaml, or a keyfile of NetworkManager")
    parser.add_argument("--unmount", action="store_true", help="unmount what is mounted on DEVICE")
    parser.add_argument("--fixed", action="store_true", help="DEVICE is built in, and is meant all the same")
    parser.add_argument("--no-bmaptool", action="store_true", help="write it without bmaptool")
    parser.add_argument("--yes", action="store_true", help="do not ask whether DEVICE is the right one")
    parser.add_argument("--dry-run", action="store_true", help="check everything, write nothing")
    return parser


def _flash(options: argparse.Namespace, roots: Roots) -> None:
    files = read_boot_files(options.config, options.ssh_key, options.wifi)
    if files:
        require_mtools()
    snapshot = read_snapshot(roots)
    # What is wrong with the disk is said before the image is read, which can take a minute.
    name = _device_name(options.device, snapshot, roots) if options.device else _ask_for_device(snapshot)
    _refuse(snapshot, name, Wish(None, options.unmount, options.fixed))
    if not options.dry_run:
        require_permission(roots.dev / name)
    checking = _show("checking the image")
    image = open_image(options.image, lambda done: checking(done, 0))
    checking(image.size_bytes, image.size_bytes)
    wish = Wish(image.size_bytes, options.unmount, options.fixed)
    disk = _refuse(snapshot, name, wish)
    bmaptool = None if options.no_bmaptool else shutil.which("bmaptool")
    for line in _plan(snapshot, disk, image, files, bmaptool):
        print(line, flush=True)  # before anything that bmaptool says
    if options.dry_run:
        print("Nothing was written (--dry-run).")
        return
    if not options.yes:
        _confirm(disk)
    for point in to_unmount(snapshot, name):
        _unmount(point)
    # Time has passed: the card may have been changed, or mounted by the desktop.
    disk = _refuse(read_snapshot(roots), name, Wish(image.size_bytes, unmount=False, fixed=options.fixed), disk)
    with Card(roots.dev / name, disk) as card:
        write_image(card, image, _show, bmaptool)
        try:
            if files:
                put_boot_files(card, files)
            # All is on the card now, so that an end here would say less than is so.
            _heed_no_signals()
        except KeyboardInterrupt:
            part = ", but for its FAT partition, which may hold a part of your files" if files else ""
            raise FlashError(
                f"Interrupted. The image is on the card and right{part}",
                "The same command writes it from the beginning.",
                INTERRUPTED,
            ) from None
        card.announce()
    print(f"Done: {disk.path} holds {image.path.name}, and was read back.")
    if files:
        print(f"In the folder {FOLDER}/ of its FAT partition: {', '.join(file.name for file in files)}.")


def _device_name(given: str, snapshot: Snapshot, roots: Roots) -> str:
    """The kernel's name of what the user named, perhaps by one of udev's links."""
    path = roots.dev / given if "/" not in given else Path(given)
    if not path.exists():
        raise FlashError(f"There is no {path}", "scripts/flash IMAGE lists what can be written to.")
    name = path.resolve().name
    if device_named(snapshot, name) is None or path.resolve().parent != roots.dev.resolve():
        raise FlashError(f"{path} is no disk", "scripts/flash IMAGE lists what can be written to.")
    return name


def _refuse(snapshot: Snapshot, name: str, wish: Wish, before: BlockDevice | None = None) -> BlockDevice:
    """The disk, when it may be written and is the one from `before`. Raises `FlashError`."""
    error = refusal(snapshot, name, wish)
    if error:
        raise error
    disk = device_named(snapshot, name)
    assert disk is not None
    if before and (disk.number, disk.size_bytes) != (before.number, before.size_bytes):
        raise FlashError(f"Another card lies in {disk.path} than a moment ago", "Run this again.")
    return disk


def describe(snapshot: Snapshot, disk: BlockDevice) -> list[str]:
    """What one has to see to know a disk: size, model, what is on it and where that is mounted."""
    lines = [f"{disk.path}  {readable_bytes(disk.size_bytes)}  {disk.model or 'no model named'}"]
    points = {use.device: use.where for use in uses(snapshot, disk.name) if use.kind == "mount"}
    for part in [disk, *partitions_of(snapshot, disk.name)]:
        if part is disk and not part.label and part.name not in points:
            continue
        mounted = f", mounted at {points[part.name]}" if part.name in points else ""
        label = f'"{part.label}"' if part.label else "no name"
        lines.append(f"    {part.name}  {readable_bytes(part.size_bytes)}  {label}{mounted}")
    return lines


def _ask_for_device(snapshot: Snapshot) -> str:
    disks = candidates(snapshot)
    if not disks:
        raise FlashError(
            "There is no removable disk", "Put the card into its reader, or name a disk: scripts/flash IMAGE /dev/sdX"
        )
    print("Removable disks:")
    for disk in disks:
        for line in describe(snapshot, disk):
            print(f"  {line}")
    if not sys.stdin.isatty():
        raise FlashError("No disk was named", f"For example: scripts/flash IMAGE {disks[0].path}")
    answer = input("Write to which one? ").strip().removeprefix("/dev/")
    if answer not in {disk.name for disk in disks}:
        raise FlashError(f"{answer or 'nothing'} is not one of them", f"For example: {disks[0].name}")
    return answer


def _plan(
    snapshot: Snapshot, disk: BlockDevice, image: Image, files: list[BootFile], bmaptool: str | None
) -> list[str]:
    how = f" ({image.kind})" if image.kind != "plain" else ""
    lines = [f"Image: {image.path.name}{how}, {readable_bytes(image.size_bytes)} on the disk"]
    if image.block_map:
        mapped = sum(extent.size_bytes for extent in image.block_map.extents)
        by = "bmaptool" if bmaptool else "this program"
        lines.append(f"       {readable_bytes(mapped)} of it matter ({image.block_map.path.name}), written by {by}")
    lines += ["Disk:  " + "\n       ".join(describe(snapshot, disk))]
    if files:
        lines.append(f"Files: {', '.join(file.name for file in files)} → {FOLDER}/ of the FAT partition")
    return lines


def _confirm(disk: BlockDevice) -> None:
    if not sys.stdin.isatty():
        raise FlashError("Nobody is there to say that it is the right disk", "Without a terminal: --yes")
    answer = input(f"Everything on {disk.path} will be lost. Type {disk.name} to go on: ").strip()
    if answer != disk.name:
        raise FlashError(
            f"Not confirmed: nothing was written to {disk.path}", f"Its name has to be typed in full: {disk.name}"
        )


def _unmount(point: str) -> None:
    done = subprocess.run(["umount", "--", point], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FlashError(
            f"{point} cannot be unmounted: {done.stderr.strip()}", "Close what uses it, then run this again."
        )
    print(f"Unmounted {point}")


def _show(what: str) -> Watch:
    return Progress(what, sys.stderr, terminal=sys.stderr.isatty())


def _interrupt(number: int, frame: object) -> None:
    # Once is enough: a second one would break into what brings the card into a state that can be named.
    _heed_no_signals()
    raise KeyboardInterrupt


def _heed_no_signals() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
