"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import ModelNotFound
from magnitude.intake.context import Context, context_of
from magnitude.intake.replies import json_reply
from magnitude.models.adapters import split_name
from magnitude.models.description import ModelDescription


async def list_models(request: Request) -> Response:
    """All models that requests may name, the default chat model first."""
    context = context_of(request)
    data = [_entry(context, model) for model in context.inference.models()]
    return json_reply({"object": "list", "data": data})


async def show_model(request: Request) -> Response:
    """One model, by name or alias."""
    context = context_of(request)
    name: str = request.path_params["model"]
    if not name:
        raise ModelNotFound("No model is named", hint="Leave the last slash out to list all models.", param="model")
    return json_reply(_entry(context, context.inference.model(name)))


def _entry(context: Context, model: ModelDescription) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "magnitude",
        "kind": model.kind,
        "family": model.family,
        "licence": model.licence,
    }
    if model.precision:
        entry["precision"] = model.precision
    if model.variant_of:
        entry["parent"] = model.variant_of
    if variants := context.inference.variant_states(model.name):
        entry["variants"] = [msgspec.to_builtins(variant) for variant in variants]
    base, adapter = split_name(model.name)
    if adapter:
        entry["parent"] = base
    if model.kind == "decoder":
        entry["context_length"] = context.inference.context_length(model.name)
    elif model.encoder is not None:
        entry["context_length"] = model.encoder.max_tokens
        entry["width"] = model.encoder.width
    return entry
