"""The Open Inference Protocol (v2), JSON over HTTP: any ONNX model, plain tensors in, tensors out.

Errors have the protocol's own shape, `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnitude import __version__
from magnitude.engine.protocol import Tensor
from magnitude.errors import EngineNotReady, RequestError
from magnitude.intake.body import read_json
from magnitude.intake.connected import while_connected
from magnitude.intake.context import Context, context_of, passage_of, principal_of, request_id_of
from magnitude.intake.fields import Fields
from magnitude.intake.replies import json_reply
from magnitude.intake.tensors import metadata, missing_inputs, parse_tensor, tensor_json
from magnitude.intake.terms import terms_of
from magnitude.intake.timing import server_timing

_MAX_TENSORS = 256


async def server_metadata(request: Request) -> Response:
    return json_reply({"name": "magnitude", "version": __version__, "extensions": []})


async def server_live(request: Request) -> Response:
    live = context_of(request).inference.health().live
    return json_reply({"live": live}, status=200 if live else 503)


async def server_ready(request: Request) -> Response:
    ready = context_of(request).inference.health().ready
    return json_reply({"ready": ready}, status=200 if ready else 503)


async def model_metadata(request: Request) -> Response:
    """Inputs and outputs of the model's graph; -1 stands for a free dimension."""
    inference = context_of(request).inference
    model = inference.model(request.path_params["model"])
    inputs, outputs = inference.signature(model.name)
    return json_reply(
        {
            "name": model.name,
            "platform": "onnxruntime_onnx",
            "inputs": [metadata(i) for i in inputs],
            "outputs": [metadata(o) for o in outputs],
        }
    )


async def model_ready(request: Request) -> Response:
    """200 when the model's graph is loaded, 503 when it is not yet."""
    inference = context_of(request).inference
    model = inference.model(request.path_params["model"])
    try:
        inference.signature(model.name)
        ready = True
    except EngineNotReady:
        ready = False
    return json_reply({"name": model.name, "ready": ready}, status=200 if ready else 503)


async def model_infer(request: Request) -> Response:
    """Run the graph once."""
    context = context_of(request)
    data = await read_json(request, context.settings.server)
    return await while_connected(request.receive, _infer(request, context, data))


async def _infer(request: Request, context: Context, data: dict[str, Any]) -> Response:
    terms = terms_of(request, task="infer")
    model = context.inference.model(request.path_params["model"])
    passage_of(request).notes["model"] = model.name
    if model.kind == "decoder":
        raise RequestError(
            f"{model.name} is a language model; its state is not a plain tensor",
            hint="Use /v1/chat/completions or /v1/completions.",
            param="model",
            code="model_kind_mismatch",
        )
    known, produced = context.inference.signature(model.name)
    fields = Fields(data)

    def inputs() -> list[Tensor]:
        entries = fields.items("inputs", max_items=_MAX_TENSORS)
        tensors = [parse_tensor(fields.entry("inputs", n, item), known) for n, item in enumerate(entries)]
        missing_inputs(tensors, known)
        return tensors

    wanted = _outputs(fields, [o.name for o in produced])
    tensors = await asyncio.to_thread(inputs)
    results = await context.inference.infer(
        model.name,
        tensors,
        wanted,
        request_key=request_id_of(request),
        priority=terms.priority,
        deadline=terms.deadline,
        client=principal_of(request).name,
    )
    body = {"model_name": model.name, "id": fields.text("id", max_chars=256) or request_id_of(request)}
    # Writing out large tensors takes long as well.
    encoded = await asyncio.to_thread(
        lambda: msgspec.json.encode({**body, "outputs": [tensor_json(t) for t in results]})
    )
    total_ms = round((context.clock() - passage_of(request).started_s) * 1000, 1)
    headers = {"Server-Timing": server_timing({"total": total_ms})}
    return Response(encoded, headers=headers, media_type="application/json")


def _outputs(fields: Fields, produced: list[str]) -> list[str]:
    names = [
        fields.entry("outputs", n, item).needed_text("name")
        for n, item in enumerate(fields.items("outputs", max_items=_MAX_TENSORS))
    ]
    for name in names:
        if name not in produced:
            raise fields.wrong("outputs", f"names {name[:64]!r}; the model's outputs are {', '.join(produced)}")
    return names
