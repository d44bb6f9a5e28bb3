"""Why a model does not load, in one line: which file, what is wrong with it, what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime

from magnitude.errors import ModelError

# How a Git LFS pointer begins, by its specification; it stands where the real file was not downloaded.
_LFS_START = b"version https://git-lfs.github.com/spec/"
_FETCH_AGAIN = "Fetch or import the model again"


def check_graph_file(path: Path) -> None:
    """Raise `ModelError` for a file that cannot be a graph, before ONNX Runtime is asked."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_START))
    except FileNotFoundError:
        raise ModelError(
            f"{path} does not exist", code="model_file_missing", param=str(path), hint=_FETCH_AGAIN
        ) from None
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read: {error.strerror}",
            code="model_file_unreadable",
            param=str(path),
            hint="Check the owner and mode of the file and the health of the disk",
        ) from error
    if not start:
        raise ModelError(f"{path} is empty", code="model_file_torn", param=str(path), hint=_FETCH_AGAIN)
    if start == _LFS_START:
        raise ModelError(
            f"{path} is a Git LFS pointer, not the model",
            code="model_file_torn",
            param=str(path),
            hint="Run 'git lfs pull' where it came from and import it again",
        )


def explain(path: Path, kind: str, text: str) -> ModelError:
    """The error to raise for ONNX Runtime's exception of class name `kind` with message `text`."""

    def model_error(cause: str, code: str, hint: str) -> ModelError:
        return ModelError(f"{path} {cause}", code=code, param=str(path), hint=hint)

    runtime = onnxruntime.__version__
    upgrade = "Export the model for an older version, or install a newer onnxruntime"
    if found := re.search(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text):
        return model_error(
            f"has ONNX IR version {found[1]}; ONNX Runtime {runtime} reads up to {found[2]}", "model_too_new", upgrade
        )
    if found := re.search(r"Opset (\d+) is under development", text):
        return model_error(
            f"uses operator set {found[1]}, which is newer than ONNX Runtime {runtime} knows",
            "model_too_new",
            upgrade,
        )
    if found := re.search(r"([\w.]*:?\w+)\(-?\d+\) is not a registered function/op", text):
        return model_error(
            f"needs the operator {found[1]}, which ONNX Runtime {runtime} does not have",
            "model_operator_unknown",
            "Export the model without that operator, or load the library that brings it",
        )
    if found := re.search(r"Could not find an implementation for ([^\n]+)", text):
        return model_error(
            f"needs {found[1].strip()}, for which this CPU has no kernel",
            "model_operator_unknown",
            "Export the model in another precision",
        )
    if found := re.search(r'External data path does not exist: "?([^"\n]+)', text):
        return model_error(f"misses its weights in {found[1]}", "model_file_missing", _FETCH_AGAIN)
    if "file_length" in text and "out of bounds" in text:
        return model_error("has a weight file that is cut off", "model_file_torn", _FETCH_AGAIN)
    if "External data" in text and "validation failed" in text:
        return model_error(
            "keeps weights outside its folder", "model_file_unsafe", "Put the weight file beside the graph"
        )
    if kind == "InvalidProtobuf" or "No graph was found in the protobuf" in text:
        return model_error("is cut off or is not an ONNX graph", "model_file_torn", _FETCH_AGAIN)
    if "bad_alloc" in text or "Failed to allocate memory" in text:
        return model_error("does not fit into memory", "out_of_memory", "Use a smaller model or fewer bits")
    first_line = text.strip().splitlines()[0] if text.strip() else kind
    return model_error(
        f"does not load: {first_line[:300]}", "model_invalid", "Import the model again or use another file"
    )
