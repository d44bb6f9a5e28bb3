"""`/v1/magnitude/kv`: conversations whose KV is held while they wait; who may see and who may delete them.

A key sees and deletes its own. An admin key, and the unix socket without a key (its file mode is the permission),
see and delete those of everybody.
"""

from __future__ import annotations

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import ModelNotFound, RequestError
from magnitude.intake.context import Context, context_of, principal_of
from magnitude.intake.gate import peer_of
from magnitude.intake.replies import json_reply


class KeptKv(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        """What is held, in memory and on disk: model, owner, tokens, size and age, never the text."""
        kept = context_of(request).inference.kept(_whose(request))
        return json_reply({"object": "list", "data": kept})

    async def delete(self, request: Request) -> Response:
        """Delete it; `?model=NAME` only that of one model. Answers how many conversations there were."""
        if unknown := sorted(set(request.query_params) - {"model"}):
            raise RequestError(
                f"The parameter {unknown[0][:40]!r} is not known; nothing was deleted",
                hint="Only the model can be named: DELETE /v1/magnitude/kv?model=NAME.",
                param=unknown[0][:40],
            )
        context = context_of(request)
        named = request.query_params.get("model")
        model = _name_of(context, named) if named is not None else None
        return json_reply({"deleted": await context.inference.forget(_whose(request), model)})


def _whose(request: Request) -> str | None:
    principal = principal_of(request)
    if principal.admin or (not principal.name and peer_of(request.scope).unix):
        return None
    return principal.name


def _name_of(context: Context, named: str) -> str:
    """An alias becomes the model's name. What a model that is gone has left on the disk can still be named."""
    try:
        return context.inference.model(named).name
    except ModelNotFound:
        return named
