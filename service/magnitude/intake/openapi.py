"""A short OpenAPI description of the routes, for people and for fuzzers."""

from __future__ import annotations

from typing import Any

from magnitude import __version__
from magnitude.intake import terms
from magnitude.intake.reserve import MAX_HOLD_S, MAX_REQUESTS
from magnitude.schedule.strategy_control import MOST_HOLD_S


def openapi_document() -> dict[str, Any]:
    """The description. It says what is taken; all other fields of the OpenAI API are ignored."""
    chat = {
        **_GENERATION,
        "messages": _list({"type": "object", "required": ["role"], "properties": _MESSAGE}, at_least=1),
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "tools": _list({"type": "object"}),
        "tool_choice": {"type": ["string", "object"]},
        "parallel_tool_calls": {"type": "boolean"},
        "response_format": {"type": "object"},
    }
    completion = {
        **_GENERATION,
        "prompt": {"type": ["string", "array"]},
        "echo": {"type": "boolean"},
        "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    }
    embedding = {
        "model": _TEXT,
        "input": {"type": ["string", "array"]},
        "encoding_format": {"enum": ["float", "base64"]},
        "dimensions": {"type": "integer", "minimum": 1},
        "truncate": {"type": "boolean"},
    }
    rerank = {
        "model": _TEXT,
        "query": _TEXT,
        "documents": _list({"type": ["string", "object"]}, at_least=1),
        "top_n": {"type": "integer", "minimum": 1},
        "return_documents": {"type": "boolean"},
    }
    pipeline = {
        "query": _TEXT,
        "documents": _list({"type": ["string", "object"]}, at_least=1),
        "embedding_model": _TEXT,
        "rerank_model": {"type": ["string", "boolean"]},
        "top_k": {"type": "integer", "minimum": 1},
        "generate": {"type": "object", "properties": chat},
    }
    reserve = {
        "model": _TEXT,
        "requests": {"type": "integer", "minimum": 1, "maximum": MAX_REQUESTS},
        "hold_s": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_HOLD_S},
    }
    strategy = {
        "model": _TEXT,
        "hold": {"type": "number", "minimum": 0, "maximum": MOST_HOLD_S},
        "import": _TEXT,
        "as_prior": {"type": "boolean"},
        "reset": {"type": "boolean"},
        "all": {"type": "boolean"},
        "trained": {"type": "boolean"},
        "pin": {"type": "object"},
        "unpin": {"type": "boolean"},
    }
    infer = {"id": _TEXT, "inputs": _list({"type": "object"}), "outputs": _list({"type": "object"})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Magnitude", "version": __version__},
        "paths": {
            "/v1/chat/completions": _post("Answer a chat", chat, ["messages"], headers=_ALL_TERMS),
            "/v1/completions": _post("Continue a prompt", completion, ["prompt"], headers=_ALL_TERMS),
            "/v1/embeddings": _post("Vectors of texts", embedding, ["input"], headers=_TERMS),
            "/v1/rerank": _post("Order documents by a query", rerank, ["query", "documents"], headers=_TERMS),
            "/v1/models": _get("All models"),
            "/v1/models/{model}": _get("One model", model=True),
            "/v1/magnitude/kv": {
                **_get("Conversations whose KV is kept, in memory or on disk"),
                "delete": {
                    "summary": "Delete them",
                    "parameters": [{"name": "model", "in": "query", "schema": _TEXT}],
                    "responses": _responses(),
                },
            },
            "/healthz": _get("Is the service alive"),
            "/readyz": _get("Can the service work"),
            "/version": _get("Name and version"),
            "/metrics": _get("Numbers for Prometheus"),
            "/v1/magnitude/state": _get("What runs, how, and with which figures"),
            "/v1/magnitude/records": _get("What became of the last tasks"),
            "/v1/magnitude/timeline": _get("What was decided lately and why, and what ran meanwhile"),
            "/v1/magnitude/reload": {
                "post": {"summary": "Read the configuration again", "responses": _responses()},
            },
            "/v1/magnitude/pipeline": _post(
                "Choose documents and answer from them", pipeline, ["query", "documents"], headers=_ALL_TERMS
            ),
            "/v1/magnitude/reserve": {
                **_post(
                    "Keep room for requests that are coming",
                    reserve,
                    ["requests"],
                    headers={terms.PRIORITY: _TERMS[terms.PRIORITY]},
                ),
                "delete": {
                    "summary": "Give the room back",
                    "parameters": [{"name": "model", "in": "query", "schema": _TEXT}],
                    "responses": _responses(),
                },
            },
            "/v1/magnitude/recycle": _post("Replace the engine", {"reason": _TEXT}, []),
            "/v1/magnitude/strategy": {
                **_get("What was learned of each model, and how it runs"),
                **_post("Change it: one of hold, import, reset, pin, unpin", strategy, []),
            },
            "/openapi.json": _get("This description"),
            "/v2": _get("Open Inference Protocol: the server"),
            "/v2/health/live": _get("Is the service alive"),
            "/v2/health/ready": _get("Can the service work"),
            "/v2/models/{model}": _get("Inputs and outputs of a model", model=True),
            "/v2/models/{model}/ready": _get("Is the model loaded", model=True),
            "/v2/models/{model}/infer": _post(
                "Tensors in, tensors out", infer, ["inputs"], model=True, headers=_TERMS
            ),
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
        "security": [{}, {"key": []}],
    }


_TEXT = {"type": "string"}
_MESSAGE = {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
    "content": {"type": ["string", "array", "null"]},
}
_GENERATION: dict[str, Any] = {
    "model": _TEXT,
    "stream": {"type": "boolean"},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "max_tokens": {"type": "integer", "minimum": 1},
    "max_completion_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 10},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
    "seed": {"type": "integer"},
    "stop": {"type": ["string", "array", "null"]},
    "n": {"const": 1},
    "store": {"type": "boolean"},
    "truncation": {"enum": ["auto", "disabled"]},
}
_TERMS: dict[str, Any] = {
    terms.PRIORITY: {"enum": ["interactive", "normal", "background"]},
    terms.DEADLINE_MS: {"type": "integer", "minimum": 1, "maximum": terms.MAX_DEADLINE_MS},
    terms.DEADLINE_MODE: {"enum": ["hard", "soft"]},
    terms.MAY_CUT: _TEXT,
}
_ALL_TERMS: dict[str, Any] = {
    **_TERMS,
    terms.CONVERSATION: {"type": "string", "pattern": f"^{terms.CONVERSATION_PATTERN}$"},
    terms.EXPECT: {"type": "integer", "minimum": 0, "maximum": terms.MAX_EXPECTED},
    terms.TASK: {"type": "string", "pattern": f"^{terms.TASK_PATTERN}$"},
    terms.KEEP: {"enum": ["yes", "no"]},
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": _TEXT,
                "hint": {"type": ["string", "null"]},
                "queue_position": {"type": "integer"},
                "done": {"type": "object"},
            },
        }
    },
}


def _list(items: dict[str, Any], *, at_least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": at_least}


def _responses() -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "200": {"description": "The answer"},
        "default": {"description": "What is wrong, and what to do next", **error},
    }


def _parameters(model: bool, headers: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    path = [{"name": "model", "in": "path", "required": True, "schema": _TEXT}] if model else []
    return path + [{"name": name, "in": "header", "schema": schema} for name, schema in (headers or {}).items()]


def _get(summary: str, *, model: bool = False) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": _parameters(model), "responses": _responses()}}


def _post(
    summary: str,
    properties: dict[str, Any],
    required: list[str],
    *,
    model: bool = False,
    headers: dict[str, Any] | None = None,
) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {
        "post": {
            "summary": summary,
            "parameters": _parameters(model, headers),
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": _responses(),
        }
    }
