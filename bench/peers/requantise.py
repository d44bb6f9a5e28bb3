"""Quantise a GGUF file a second time with llama.cpp's own quantiser: `requantise.py IN OUT [Q4_0|Q4_K_M]`.

Q4_0 is the format that llama.cpp repacks for the CPU at hand, so it is the peer at its fastest. Quantising what is
quantised already costs quality; the file is for measuring speed only.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def requantise(source: Path, target: Path, kind: str = "Q4_0") -> None:
    """Write `target`; an interrupted run leaves no file of that name."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    unfinished = target.with_suffix(".part")
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(unfinished).encode(), ctypes.byref(params))
    if status != 0:
        raise SystemExit(f"llama.cpp's quantiser answers {status} for {source}")
    unfinished.replace(target)


if __name__ == "__main__":
    requantise(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
