"""What images and Debian packages leave out of Python packages, and why. (Of Debian: image/guest/trimming.py.)

One list for all that is built from wheels, so that what the tests prove of one holds for the others. Nothing is
stripped of symbols: wheels come stripped but for a few megabytes, and `strip` breaks libraries whose paths have been
edited to fit a wheel.
"""

from __future__ import annotations

import shutil
from pathlib import Path

# Below the folder of Python packages, as patterns of `Path.glob`.
PYTHON_PACKAGES = (
    # Programs of the dependencies; their first line names the Python that installed them.
    "bin",
    # For type checkers, compilers and test runners.
    "**/*.pyi",
    "**/*.pxd",
    "**/*.[ch]",
    "**/*.cc",
    "**/*.a",
    "**/include",
    "**/tests",
    # ONNX Runtime for programs in C. Python's module has all of it inside, and is not linked to this one.
    "onnxruntime/capi/libonnxruntime.so*",
    # Tools to convert, quantise and try models, each for a developer's desk.
    "onnxruntime/backend",
    "onnxruntime/datasets",
    "onnxruntime/quantization",
    "onnxruntime/tools",
    "onnxruntime/transformers",
    # The importers write graphs and check them; they run nothing in Python.
    "onnx/backend",
    "onnx/reference",
    "onnx/test",
    "gguf/scripts",
    # Fortran, freezing programs, files for compilers, and what numpy's own tests load.
    "numpy/f2py",
    "numpy/_pyinstaller",
    "numpy/_core/lib",
    "numpy/_core/_simd.*",
    "numpy/_core/_*_tests.*",
    # What tokenizers and gguf would download with: a device gets its models as files. (Their metadata stays, so that
    # what requires what can be checked.)
    "charset_normalizer",
    "filelock",
    "fsspec",
    "hf_xet",
    "httpcore2",
    "httpx2",
    "huggingface_hub",
    "requests",
    "tqdm",
    "truststore",
    "urllib3",
    # The reader in C. Configuration is a few lines, and is read by the one in Python.
    "yaml/_yaml.*",
    # Colours of languages that no message of ours has; KEPT has the others.
    "pygments/lexers/*.py",
    # Where the wheels lay when the package was built.
    "*.dist-info/direct_url.json",
    "*.dist-info/REQUESTED",
)
KEPT = frozenset(f"pygments/lexers/{name}.py" for name in ("__init__", "_mapping", "python", "special"))
# Units for devices that are ours as a whole: nobody should come to put those onto a system of their own.
IMAGES_ALONE = ("magnitude/systemd/image",)


def trim_packages(site: Path, *, image: bool) -> None:
    """Remove from the Python packages in `site` what nobody needs at run time, on an image or elsewhere."""
    for pattern in PYTHON_PACKAGES if image else (*PYTHON_PACKAGES, *IMAGES_ALONE):
        for path in list(site.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif str(path.relative_to(site)) not in KEPT:
                path.unlink(missing_ok=True)
