"""The packed weights of a kernel plan in a file, and sessions that have them mapped.

The operators of a kernel plan pack the codes that the graph names when a session is made, into memory of that session
alone. A session that is given packed weights in the place of codes uses these as they are: mapped from a file, they
are page cache that all such sessions share. Where the codes lie is said by the graph itself, in its metadata.
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import PROVIDERS, session_options
from magnitude.kernels.library import KernelLibrary
from magnitude.models.description import KERNEL_PRODUCTS
from magnitude.persist import Unusable

WEIGHTS, PLACES = "weights.bin", "places.json"
# Of each matrix in the file: a cache line, as the operators like it.
_ALIGN_BYTES = 64


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """A product as the graph's metadata describes it: `n` outputs of `blocks` blocks, and (offset, bytes) of codes,
    scales and, where there are minima, the correction in the model's data file."""

    bits: int
    n: int
    blocks: int
    spans: tuple[tuple[int, int], ...]


def write_packed(session: Any, data: Path, folder: Path, library: KernelLibrary) -> None:
    """Write the packed weights of the kernel plan that `session` has, whose data file is `data`, into `folder`.

    Raises `Unusable` where metadata and data do not belong together, `EngineError` for weights that cannot be packed.
    """
    said = session.get_modelmeta().custom_metadata_map.get(KERNEL_PRODUCTS, "{}")
    try:
        products = msgspec.json.decode(said, type=dict[str, Product])
    except msgspec.MsgspecError as error:
        raise Unusable(f"its products are not described: {error}") from error
    places: dict[str, tuple[int, int]] = {}
    stored = np.memmap(data, np.uint8, "r")
    with (folder / WEIGHTS).open("wb") as file:
        for name, product in products.items():
            packed = _packed(product, stored, library)
            file.write(b"\0" * (-file.tell() % _ALIGN_BYTES))
            places[name] = (file.tell(), packed.nbytes)
            file.write(packed.data)
    (folder / PLACES).write_text(json.dumps(places))


def _packed(product: Product, stored: NDArray[np.uint8], library: KernelLibrary) -> NDArray[np.uint8]:
    n, blocks = product.n, product.blocks
    parts = [stored[start : start + length] for start, length in product.spans]
    try:
        codes = parts[0].reshape(n, blocks, 4 * product.bits)
        scales = parts[1].view("<f4").reshape(n, blocks)
        correction = parts[2].view("<f4").reshape(-1, n) if len(parts) > 2 else None
    except (IndexError, ValueError) as error:
        raise Unusable(f"a product is not where it should be: {error}") from error
    return library.pack(product.bits, codes, scales, correction)


def open_packed(path: Path, folder: Path, spec: SessionSpec, library: KernelLibrary, profile: str = "") -> Any:
    """A session of the kernel plan at `path` with the packed weights in `folder`. Raises what reading them and making
    a session raise."""
    places = msgspec.json.decode((folder / PLACES).read_bytes(), type=dict[str, tuple[int, int]])
    options = session_options(spec.threads, arena=spec.arena, profile=profile, kernels=library)
    mapped = np.frombuffer(_mapped(folder / WEIGHTS), np.uint8) if places else np.empty(0, np.uint8)
    given = []
    for name, (start, length) in places.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(mapped[start : start + length])
        options.add_initializer(name, value)
        given.append(value)
    session = onnxruntime.InferenceSession(str(path), options, providers=list(PROVIDERS))
    # ONNX Runtime uses this memory and leaves it to its owner to keep it.
    session.mapped_weights = (mapped, given)
    return session


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
