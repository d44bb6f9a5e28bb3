"""The kernels' C interface (`kernels/include/magnitude_kernels.h`), loaded once a process.

Everything here may be called from any thread, except that the width of the pool is one thread's to set.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from magnitude.errors import EngineError
from magnitude.kernels.locate import library_path, why_not

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Of the C interface and the operators. Another one may take other arguments, so that nothing but the version is asked
# of it.
VERSION = 3

_INT64, _SIZE, _POINTER, _INT = ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
# Of an ELF header: magic, class, byte order, offset, size and number of the section headers.
_ELF64 = struct.Struct("<4sBB34xQ10xHH2x")
# What ONNX Runtime calls when a session registers the library; a build without its headers does not have it.
_REGISTER = "RegisterCustomOps"


class OperatorCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of operator has cost in this process since counters were reset."""

    calls: int
    nanoseconds: int
    weight_bytes: int
    kv_bytes: int
    rows: int


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in OperatorCost.__struct_fields__]


class KernelLibrary:
    """The library at `path`. Raises `EngineError` `kernels_unusable` unless it can be loaded and is of `VERSION`.

    Its own errors are `EngineError`s with the code `kernel_failed`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not _is_whole(path):
            raise _unusable(f"{path} is cut off, or no library")
        try:
            raw = ctypes.CDLL(str(path))
            version = int(raw.mk_version())
        except (OSError, AttributeError) as error:
            raise _unusable(f"{path} cannot be loaded: {error}") from error
        if version != VERSION:
            raise _unusable(f"{path} is of version {version}, and this service uses version {VERSION}")
        if not hasattr(raw, _REGISTER):
            raise _unusable(f"{path} was built without ONNX Runtime's headers and has no operators")
        self._raw: Any = _typed(raw)
        self._pool: tuple[int, tuple[int, ...]] = (0, ())

    @cached_property
    def sha256(self) -> str:
        """Of the file: what it has computed holds for this build of it."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def instruction_set(self) -> str:
        """The one that is in use."""
        return str(self._raw.mk_isa().decode())

    def pack(
        self,
        bits: int,
        codes: NDArray[np.uint8],
        scales: NDArray[np.float32],
        correction: NDArray[np.float32] | None,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Weights as an operator wants them, uint8 `[bytes]`, from codes `[n, blocks, 4 * bits]`, scales
        `[n, blocks]` and, with 4 bits, a correction `[blocks or more, n]` of which `blocks` rows count."""
        # The service only asks whether there are kernels, and does without NumPy: 11 MB of 56 (x86-64, RSS).
        import numpy as np

        n, blocks = scales.shape
        codes, scales = np.ascontiguousarray(codes), np.ascontiguousarray(scales)
        if correction is not None:
            if len(correction) < blocks or correction.shape[1] != n:
                raise _failed(f"a correction of {correction.shape} is none for {n} outputs of {blocks} blocks")
            correction = np.ascontiguousarray(correction[:blocks])
        size = self._checked(self._raw.mk_pack_blocks_bytes(bits, n, blocks, int(correction is not None)))
        packed = np.empty(size, np.uint8) if out is None else out
        pointers = codes.ctypes.data, codes.nbytes, scales.ctypes.data
        rest = None if correction is None else correction.ctypes.data, packed.ctypes.data, packed.nbytes
        self._checked(self._raw.mk_pack_blocks(bits, n, blocks, *pointers, *rest))
        return packed

    def use_threads(self, threads: int, cpus: tuple[int, ...] = ()) -> int:
        """From the next operator on, `threads` threads compute: the calling one, which is left where it is, and
        others on the CPUs behind the first of `cpus`, or anywhere. Costs nothing while nothing changes.

        Returns how many of them could not have their CPU.
        """
        wanted = (threads, cpus)
        if wanted == self._pool:
            return 0
        cores = None
        if cpus:
            # More threads than CPUs share them in turn.
            placed = [-1, *(cpus[thread % len(cpus)] for thread in range(1, threads))]
            cores = (_INT * threads)(*placed)
        missed = self._checked(self._raw.mk_pool_set(threads, cores, None))
        self._pool = wanted
        return missed

    @property
    def threads(self) -> int:
        return int(self._raw.mk_pool_threads())

    def stop_threads(self) -> None:
        """End the pool's threads; the caller of an operator computes alone from then on."""
        self._pool = (0, ())
        self._checked(self._raw.mk_pool_stop())

    def costs(self) -> dict[str, OperatorCost]:
        """By kind of operator; all zero where the library was built without counters."""
        found: dict[str, OperatorCost] = {}
        while (name := self._raw.mk_operator_name(len(found))) is not None:
            counters = _Counters()
            self._checked(self._raw.mk_counters_read(len(found), ctypes.byref(counters)))
            figures = {field: int(getattr(counters, field)) for field in OperatorCost.__struct_fields__}
            found[name.decode()] = OperatorCost(**figures)
        return found

    def reset_costs(self) -> None:
        self._raw.mk_counters_reset()

    def _checked(self, status: int) -> int:
        if status < 0:
            raise _failed(self._raw.mk_error().decode(errors="replace"))
        return int(status)


class Kernels:
    """The library of this process, loaded by whoever first asks for it."""

    def __init__(self) -> None:
        self._tried: dict[str, KernelLibrary | EngineError] = {}

    def library(self) -> KernelLibrary:
        """Raises `EngineError` `kernels_unusable` where there is none, or none that fits."""
        path = library_path()
        if path is None:
            raise _unusable(why_not())
        # A library stays loaded as long as the process lives: what lies there later is another matter.
        key = os.fspath(path)
        if key not in self._tried:
            try:
                self._tried[key] = KernelLibrary(path)
            except EngineError as error:
                self._tried[key] = error
        found = self._tried[key]
        if isinstance(found, EngineError):
            raise found
        return found

    def why_not(self) -> str:
        """Why no graph can be computed with kernels here, as a sentence; "" where they can."""
        try:
            self.library()
        except EngineError as error:
            return error.message
        return ""


kernels = Kernels()


def _is_whole(path: Path) -> bool:
    """Whether an ELF file goes on to the end of its section headers, which linkers write last. The loader maps a file
    that is too short without a word, and the process ends where it first reads beyond."""
    try:
        with path.open("rb") as file:
            head = file.read(_ELF64.size)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if len(head) < _ELF64.size:
        return False
    magic, kind, order, sections_at, section_bytes, sections = _ELF64.unpack(head)
    if (magic, kind, order) != (b"\x7fELF", 2, 1):  # 64 bits, little-endian
        return False
    return bool(sections_at + section_bytes * sections <= size)


def _typed(raw: Any) -> Any:
    raw.mk_error.restype = ctypes.c_char_p
    raw.mk_isa.restype = ctypes.c_char_p
    raw.mk_pack_blocks_bytes.restype = _INT64
    raw.mk_pack_blocks_bytes.argtypes = [_INT, _INT64, _INT64, _INT]
    raw.mk_pack_blocks.argtypes = [
        *(_INT, _INT64, _INT64, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE),
    ]
    raw.mk_pool_set.argtypes = [_INT, _POINTER, _POINTER]
    raw.mk_operator_name.restype = ctypes.c_char_p
    raw.mk_operator_name.argtypes = [_INT]
    raw.mk_counters_read.argtypes = [_INT, _POINTER]
    raw.mk_counters_reset.restype = None
    return raw


def _unusable(why: str) -> EngineError:
    return EngineError(
        why,
        code="kernels_unusable",
        hint="Everything works without kernels. Install a build of this version that has them",
    )


def _failed(why: str) -> EngineError:
    return EngineError(f"the kernels refused: {why}", code="kernel_failed")
