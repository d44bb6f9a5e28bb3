"""Quantise a GGUF file a second time, to Q4_0, with llama.cpp's own quantiser: `requantise.py IN OUT`.

Q4_0 is the format that llama.cpp repacks for the CPU at hand, so it is the peer at its fastest. Quantising what is
quantised already costs quality; the file is for measuring speed only.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def requantise(source: Path, target: Path) -> None:
    """Write `target`; an interrupted run leaves no file of that name."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    unfinished = target.with_suffix(".part")
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(unfinished).encode(), ctypes.byref(params))
    if status != 0:
        raise SystemExit(f"llama.cpp's quantiser answers {status} for {source}")
    unfinished.replace(target)


if __name__ == "__main__":
    requantise(Path(sys.argv[1]), Path(sys.argv[2]))
