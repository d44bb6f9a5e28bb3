"""`POST /v1/rerank`, in the shape of Jina's and Cohere's APIs: documents by how well they answer a query."""

from __future__ import annotations

import asyncio
import math
import secrets
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import EngineError, RequestError
from magnitude.intake.body import read_json
from magnitude.intake.connected import while_connected
from magnitude.intake.context import Context, context_of, passage_of, principal_of, request_id_of
from magnitude.intake.embeddings import account, encoder_shape, floats, too_long
from magnitude.intake.fields import Fields, type_name
from magnitude.intake.replies import json_reply
from magnitude.intake.terms import Terms, terms_of
from magnitude.models.description import ModelDescription
from magnitude.schedule.inference import VectorsResult
from magnitude.text.tokenizer import EncodedPair, TextTokenizer

MAX_DOCUMENTS = 1024  # each is a whole run of the encoder


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Long documents are cut to what the model takes, and the result says so; the query never is."""

    model: str
    query: str
    documents: list[str]
    top_n: int | None
    return_documents: bool


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Scores between 0 and 1, in the order of the documents, and the inputs that they were computed from."""

    scores: list[float]
    pairs: list[EncodedPair]
    result: VectorsResult

    @property
    def tokens(self) -> int:
        return sum(len(pair.ids) for pair in self.pairs)

    @property
    def queue_s(self) -> float:
        return self.result.queue_s

    @property
    def run_s(self) -> float:
        return self.result.run_s


def parse_rerank(data: dict[str, Any]) -> RerankRequest:
    """Check a rerank request. Raises `RequestError` naming the field that is wrong."""
    fields = Fields(data)
    documents = [
        read_document(fields, n, item) for n, item in enumerate(fields.items("documents", max_items=MAX_DOCUMENTS))
    ]
    if not documents:
        raise fields.wrong("documents", "is missing or empty")
    query = fields.needed_text("query")
    if not query:
        raise fields.wrong("query", "is empty")
    return RerankRequest(
        model=fields.text("model", max_chars=256),
        query=query,
        documents=documents,
        top_n=fields.integer("top_n", low=1),
        return_documents=fields.boolean("return_documents"),
    )


async def rerank(request: Request) -> Response:
    """Scores of all documents, best first."""
    context = context_of(request)
    wanted = parse_rerank(await read_json(request, context.settings.server))
    return await while_connected(request.receive, _answer(request, context, wanted))


async def _answer(request: Request, context: Context, wanted: RerankRequest) -> Response:
    terms = terms_of(request, task="rerank")
    model = context.model_of_kind(wanted.model, "reranker", "rerank")
    passage_of(request).notes["model"] = model.name
    ranking = await score_documents(
        request, context, model, query=wanted.query, documents=wanted.documents, terms=terms
    )
    scores, pairs, tokens = ranking.scores, ranking.pairs, ranking.tokens
    headers = account(request, context, model, ranking.result, tokens=tokens)
    order = sorted(range(len(scores)), key=lambda n: (-scores[n], n))[: wanted.top_n]
    results = []
    for n in order:
        entry: dict[str, Any] = {"index": n, "relevance_score": scores[n]}
        if wanted.return_documents:
            entry["document"] = {"text": wanted.documents[n]}
        if pairs[n].truncated_tokens:
            entry["truncated_tokens"] = pairs[n].truncated_tokens
        results.append(entry)
    body = {
        "id": f"rerank-{secrets.token_hex(12)}",
        "object": "list",
        "model": model.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return json_reply(body, headers)


async def score_documents(
    request: Request,
    context: Context,
    model: ModelDescription,
    *,
    query: str,
    documents: list[str],
    terms: Terms,
) -> Ranking:
    """The reranker's score of each document. Raises `ContextLengthExceeded` when the query alone is too long, and
    `EngineError` when the model does not give one value a document."""
    shape = encoder_shape(model)
    tokenizer = (await context.text_of(model)).tokenizer
    pairs = await asyncio.to_thread(_encode, tokenizer, query, documents, shape.max_tokens)
    result = await context.inference.embed(
        model.name,
        [p.ids for p in pairs],
        [p.token_types for p in pairs] if shape.token_type_ids else [],
        request_key=request_id_of(request),
        priority=terms.priority,
        deadline=terms.deadline,
        client=principal_of(request).name,
    )
    if result.width != 1 or len(result.rows) != len(pairs):
        raise EngineError(
            f"The reranker {model.name} gave {result.width} values a document; one is needed",
            hint="Use a model with a single relevance output.",
        )
    scores = [_relevance(floats(row)[0], normalised=shape.normalised) for row in result.rows]
    return Ranking(scores=scores, pairs=pairs, result=result)


def read_document(fields: Fields, index: int, item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        return fields.entry("documents", index, item).needed_text("text")
    where = f"documents[{index}]"
    raise RequestError(
        f"{where} must be a text or an object with a text, not {type_name(item)}", param=where, code="invalid_type"
    )


def _encode(tokenizer: TextTokenizer, query: str, documents: list[str], limit: int) -> list[EncodedPair]:
    pairs: list[EncodedPair] = []
    for document in documents:
        pair = tokenizer.encode_pair(query, document, limit=limit)
        if len(pair.ids) > limit:
            raise too_long("query", len(pair.ids), limit)
        pairs.append(pair)
    return pairs


def _relevance(score: float, *, normalised: bool) -> float:
    """A score between 0 and 1; raw ones (logits) go through the logistic function, which keeps their order."""
    if normalised:
        return score
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))
