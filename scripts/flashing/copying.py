"""Writing an image to a card and reading it back.

The first piece, which holds the partition table, is wiped at the beginning and written at the end. A card that was
left off in between is empty to every computer, and nobody can boot half a system.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from flashing.image import Image
from flashing.terms import (
    DIFFERENT,
    INTERRUPTED,
    PIECE_BYTES,
    UNUSABLE,
    Extent,
    FlashError,
    readable_bytes,
)

# After so much, wait until the card has it: the kernel would take gigabytes, and the progress shown would be a lie.
_FLUSH_BYTES = 32 << 20
_NO_TABLE = "The card has no partition table now and does not boot. Flash it again."
_UNKNOWN = "The card can no longer be reached and may hold a part of the image. Do not boot it; flash it again."

Watch = Callable[[int, int], None]  # bytes done, bytes in all
Show = Callable[[str], Watch]  # what is being done → where its progress goes


class Disk(Protocol):
    """What is asked of `card.Card`."""

    path: Path
    size_bytes: int

    def write(self, offset: int, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def read(self, offset: int, size: int) -> bytes: ...
    def share(self) -> None: ...


def write_image(card: Disk, image: Image, show: Show, bmaptool: str | None = None) -> None:
    """Write `image` and read it back; with the program `bmaptool` when it is given and there is a block map.

    Raises `FlashError` that says in which state the card is, and wipes the partition table of one that is not right.
    """
    try:
        _wipe(card, image.size_bytes)
        rest = image.block_map.text_from(PIECE_BYTES) if bmaptool and image.block_map else ""
        if bmaptool and image.block_map and rest:
            _run_bmaptool(card, image, bmaptool, rest)
            _write_first(card, next(image.pieces()))
            extents = list(image.block_map.extents)
        else:
            extents = _copy(card, image, show("writing"))
        _verify(card, extents, show("verifying"))
    except KeyboardInterrupt:
        raise FlashError(
            f"Interrupted. {_spoil(card, image.size_bytes)}",
            "The same command writes it from the beginning.",
            INTERRUPTED,
        ) from None
    except FlashError as error:
        raise FlashError(
            f"{error}. {_spoil(card, image.size_bytes)}", error.hint, max(error.status, UNUSABLE)
        ) from error
    except OSError as error:
        raise FlashError(
            f"{card.path} does not take the image: {error.strerror}. {_spoil(card, image.size_bytes)}",
            "Was it pulled out? Otherwise try another reader, then another card: worn ones fail like this.",
            UNUSABLE,
        ) from error


def write_changes(card: Disk, offset: int, before: bytes, after: bytes) -> bool:
    """Bring the piece at `offset` from `before` to `after`; whether it is read back so. Raises `OSError`."""
    if before != after:
        card.write(offset, after)
        card.flush()
    return card.read(offset, len(after)) == after


def _wipe(card: Disk, image_bytes: int) -> None:
    card.write(0, bytes(min(PIECE_BYTES, image_bytes)))
    card.flush()


def _spoil(card: Disk, image_bytes: int) -> str:
    """Make sure that a card that is not right is not taken for one that is; the sentence that says how it is."""
    try:
        _wipe(card, image_bytes)
    except OSError:
        return _UNKNOWN
    return _NO_TABLE


def _copy(card: Disk, image: Image, watch: Watch) -> list[Extent]:
    """Write all pieces, the first one last; what must be read back. A block map has the checksums of all that
    matters, and has been compared with the image before."""
    extents: list[Extent] = []
    head = b""
    offset = unflushed = 0
    for piece in image.pieces():
        if offset == 0:
            head = piece
        elif image.block_map:
            for start, end in image.block_map.mapped(offset, offset + len(piece)):
                card.write(start, piece[start - offset : end - offset])
        elif piece.count(0) != len(piece) or card.read(offset, len(piece)) != piece:
            # Zeros are most of an image. Where the card has them already, reading is quicker and wears it less; where
            # it does not, something old would shine through.
            card.write(offset, piece)
        if not image.block_map:
            extents.append(Extent(offset, len(piece), "sha256", hashlib.sha256(piece).hexdigest()))
        offset += len(piece)
        unflushed += len(piece)
        if unflushed >= _FLUSH_BYTES:
            card.flush()
            unflushed = 0
        watch(offset, image.size_bytes)
    if offset != image.size_bytes:
        raise FlashError(f"{image.path.name} has changed while it was read", "Leave it alone, and run this again.")
    _write_first(card, head)
    return list(image.block_map.extents) if image.block_map else extents


def _write_first(card: Disk, head: bytes) -> None:
    """The piece with the partition table, once the card has all others."""
    card.flush()
    card.write(0, head)
    card.flush()


def _run_bmaptool(card: Disk, image: Image, program: str, block_map: str) -> None:
    """It shows its own progress. Its map lacks the first piece: whatever ends it, or both of us, leaves no table."""
    card.share()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{image.path.name}.bmap"
        path.write_text(block_map)
        status = _run([program, "copy", "--bmap", str(path), str(image.path), str(card.path)])
    if status:
        raise FlashError(
            f"bmaptool ended with status {status} (its message is above)",
            "Without it: --no-bmaptool. If that fails as well: another reader, then another card.",
        )


def _run(command: list[str]) -> int:
    # Out of the terminal's reach: a Ctrl-C would have it print where in its sources it was.
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _verify(card: Disk, extents: list[Extent], watch: Watch) -> None:
    """Compare what the card gives back with the checksums. Raises `FlashError` and `OSError`."""
    total = sum(extent.size_bytes for extent in extents)
    done = 0
    for extent in extents:
        digest = hashlib.new(extent.algorithm)
        at, end = extent.offset_bytes, extent.offset_bytes + extent.size_bytes
        while at < end:
            piece = card.read(at, min(PIECE_BYTES, end - at))
            if not piece:
                break
            digest.update(piece)
            at += len(piece)
            done += len(piece)
            watch(done, total)
        if digest.hexdigest() != extent.digest:
            raise FlashError(
                f"{card.path} gave back something else than was written, "
                f"between {readable_bytes(extent.offset_bytes)} and {readable_bytes(end)}",
                "Try another reader, then another card: worn ones do this, and those that are smaller than they say.",
                DIFFERENT,
            )
