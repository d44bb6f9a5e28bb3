"""What every route needs, in one place: made once by `build_app`, found again through `request.app.state`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request

from magnitude.config import Settings
from magnitude.errors import ModelNotFound, RequestError
from magnitude.feedback.metrics import Metrics
from magnitude.feedback.record_store import RecordStore
from magnitude.intake.auth import Principal
from magnitude.intake.live import LiveSettings
from magnitude.models.description import Kind, ModelDescription
from magnitude.schedule.inference import Inference
from magnitude.schedule.strategy_control import StrategyControl
from magnitude.text.catalogue import ModelText, TextCatalogue


class Passage(msgspec.Struct, kw_only=True):
    """One request's way through the service. Routes find it under `scope["magnitude"]`."""

    request_id: str
    principal: Principal
    started_s: float  # when it arrived, by the monotonic clock
    notes: dict[str, Any] = {}  # what a route adds to the log line: counts and times, never content


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The parts behind the HTTP face. `clock` is monotonic seconds, `wall_clock` seconds since 1970."""

    inference: Inference
    live: LiveSettings
    texts: TextCatalogue
    metrics: Metrics
    records: RecordStore | None
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    strategies: StrategyControl | None = None  # None: nothing is learned here

    @property
    def settings(self) -> Settings:
        """Those in force now; a request that looks twice may see two."""
        return self.live.current

    async def text_of(self, model: ModelDescription) -> ModelText:
        """Tokenizer and templates; read in a worker thread the first time."""
        return await asyncio.to_thread(self.texts.get, model)

    def model_of_kind(self, name: str, kind: Kind, route: str) -> ModelDescription:
        """The model that a request names, or the first of `kind` when it names none.

        Raises `ModelNotFound`, or `RequestError` when the named model cannot do what the route does.
        """
        if name in ("", "default") and kind != "decoder":
            for model in self.inference.models():
                if model.kind == kind:
                    return model
            raise ModelNotFound(
                f"No {kind} model is loaded",
                hint="Import one with `magnitude import`; `magnitude list` shows what there is.",
                param="model",
            )
        model = self.inference.model(name)
        if model.kind != kind:
            fitting = [m.name for m in self.inference.models() if m.kind == kind]
            raise RequestError(
                f"The model {model.name} is a model of the kind '{model.kind}'; {route} needs the kind '{kind}'",
                hint=f"Use {' or '.join(fitting)}." if fitting else "No such model is loaded; import one.",
                param="model",
                code="model_kind_mismatch",
            )
        return model


def context_of(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


def passage_of(request: Request) -> Passage:
    found: Passage = request.scope["magnitude"]
    return found


def request_id_of(request: Request) -> str:
    return passage_of(request).request_id


def principal_of(request: Request) -> Principal:
    return passage_of(request).principal
