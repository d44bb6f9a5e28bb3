"""Tokenizer and templates of every model, read once each."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from pathlib import Path

import msgspec

from magnitude.errors import MagnitudeError, ModelError
from magnitude.models.description import ModelDescription
from magnitude.text.template import TemplateSet, load_templates
from magnitude.text.tokenizer import TextTokenizer


class ModelText(msgspec.Struct, frozen=True):
    """What turns text into ids and back for one model."""

    tokenizer: TextTokenizer
    templates: TemplateSet | None = None


class TextCatalogue:
    """Loads on first use and keeps what it loaded. `get` reads files: call it from a worker thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], ModelText] = {}

    def get(self, model: ModelDescription) -> ModelText:
        """Tokenizer and templates of `model`. Raises `ModelError` when it has no usable ones."""
        key = (model.folder, model.model_hash)
        with self._lock:
            text = self._known.get(key)
            if text is None:
                text = self._known[key] = load_text(model)
                _give_memory_back()
            return text

    def forget(self, model: ModelDescription) -> None:
        """Give up what was read for `model`; it is read again when it is asked for."""
        # Without the lock, which a thread may hold for as long as reading takes: one `pop` is atomic.
        self._known.pop((model.folder, model.model_hash), None)

    def trim(self) -> None:
        """Drop what the tokenizers have learnt by heart, and give freed memory back."""
        for text in list(self._known.values()):
            text.tokenizer.trim()
        _give_memory_back()

    def problems(self, model: ModelDescription) -> list[str]:
        """What about the text side of `model` is not in order, in words; to be reported at start."""
        if model.kind == "tensors":
            return []
        try:
            text = self.get(model)
        except MagnitudeError as error:
            return [f"{model.name}: {error}"]
        if model.kind == "decoder" and text.templates is None:
            return [f"{model.name} has no chat template: it serves /v1/completions only"]
        return []


def _give_memory_back() -> None:
    """Reading a tokenizer leaves much freed memory with the C library (49,000 pieces: 17 of 33 MB)."""
    with contextlib.suppress(AttributeError, OSError):  # not every C library has the call
        ctypes.CDLL(None).malloc_trim(0)


def load_text(model: ModelDescription) -> ModelText:
    """Read a model folder's tokenizer and templates. Raises `ModelError`."""
    if not model.tokenizer_file:
        raise ModelError(
            f"The model {model.name} has no tokenizer",
            hint="Send it tensors through /v2/models/{name}/infer, or import it with its tokenizer.json.",
            param="model",
            code="no_tokenizer",
        )
    folder = Path(model.folder)
    tokenizer = TextTokenizer.load(folder / model.tokenizer_file, model.special)
    tokens = {"bos_token": tokenizer.bos_text, "eos_token": tokenizer.eos_text}
    templates = load_templates(folder, model.chat_template_file, tokens) if model.kind == "decoder" else None
    return ModelText(tokenizer, templates)
