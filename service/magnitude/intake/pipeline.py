"""`POST /v1/magnitude/pipeline`: choose documents for a query, and answer from them, in one request.

The embedder ranks all documents inside the engine; a reranker, where one is served, looks at the best of them; what
it chooses goes into the prompt of a chat. The chat's answer is returned with the choice beside it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from magnitude.config import Settings
from magnitude.errors import ContextLengthExceeded, RequestError
from magnitude.intake.body import read_json
from magnitude.intake.chat import answer_chat
from magnitude.intake.chat_request import ChatRequest, parse_chat
from magnitude.intake.connected import while_connected
from magnitude.intake.context import Context, context_of, principal_of, request_id_of
from magnitude.intake.embeddings import encoder_shape, too_long
from magnitude.intake.fields import Fields
from magnitude.intake.replies import json_reply
from magnitude.intake.rerank import MAX_DOCUMENTS, Ranking, read_document, score_documents
from magnitude.intake.terms import Terms, terms_of
from magnitude.models.description import ModelDescription
from magnitude.schedule.inference import RankedResult
from magnitude.schedule.pipeline import Candidate, candidates_wanted, choose, fitting
from magnitude.text.chat_prompt import chat_prompt
from magnitude.text.document_prompt import document_text, with_documents
from magnitude.text.tokenizer import EncodedPair, TextTokenizer

# Enough for a small model's context at a hundred tokens a document.
_DEFAULT_TOP_K = 4
_MAX_TOP_K = 64


class PipelineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`rerank_model`: "" for the one that is served, if any; None for none at all."""

    query: str
    documents: list[str]
    embedding_model: str
    rerank_model: str | None
    top_k: int
    chat: ChatRequest


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages before the answer led to. `times_ms` by stage."""

    embedder: str
    reranker: str | None
    considered: int
    candidates: list[Candidate]
    truncated: dict[int, int]  # tokens that the encoders did not see, by document
    times_ms: dict[str, dict[str, float]]


def parse_pipeline(data: dict[str, Any], settings: Settings) -> PipelineRequest:
    """Check a pipeline request. Raises `RequestError` naming the field that is wrong."""
    fields = Fields(data)
    given = fields.items("documents", max_items=MAX_DOCUMENTS)
    documents = [read_document(fields, n, item) for n, item in enumerate(given)]
    if not documents:
        raise fields.wrong("documents", "is missing or empty")
    for n, document in enumerate(documents):
        if not document.strip():
            raise fields.wrong(f"documents[{n}]", "is empty")
    query = fields.needed_text("query")
    if not query.strip():
        raise fields.wrong("query", "is empty")
    generate = fields.object("generate")
    return PipelineRequest(
        query=query,
        documents=documents,
        embedding_model=fields.text("embedding_model", max_chars=256),
        rerank_model=None if data.get("rerank_model") is False else fields.text("rerank_model", max_chars=256),
        top_k=fields.integer("top_k", low=1, high=_MAX_TOP_K) or _DEFAULT_TOP_K,
        chat=_chat(generate.as_dict() if generate else {}, query, settings),
    )


def _chat(data: dict[str, Any], query: str, settings: Settings) -> ChatRequest:
    if data.get("messages") is None:
        data = {**data, "messages": [{"role": "user", "content": query}]}
    try:
        return parse_chat(data, settings)
    except RequestError as error:
        param = f"generate.{error.param}" if error.param else "generate"
        raise RequestError(error.message, hint=error.hint, param=param, code=error.code) from None


async def pipeline(request: Request) -> ASGIApp:
    """Answer a query from documents, whole or as a stream."""
    context = context_of(request)
    wanted = parse_pipeline(await read_json(request, context.settings.server), context.settings)
    return await while_connected(request.receive, _answer(request, context, wanted))


async def _answer(request: Request, context: Context, wanted: PipelineRequest) -> ASGIApp:
    terms = terms_of(request, task="pipeline")
    context.model_of_kind(wanted.chat.model, "decoder", "pipeline")  # before anything is computed
    chosen = await _choose(request, context, wanted, terms)
    kept = await _fit(context, wanted, chosen)
    used = [wanted.documents[candidate.index] for candidate in kept]
    shown = _shown(chosen, kept)
    chat = msgspec.structs.replace(
        wanted.chat,
        messages=with_documents(wanted.chat.messages, wanted.query, used),
        extension={"pipeline": shown},
    )
    started_s = context.clock()
    answer = await answer_chat(request, context, chat)
    if not isinstance(answer, Response):
        return answer
    shown["times_ms"]["generate"] = {"total": _ms(context.clock() - started_s)}
    body = {**msgspec.json.decode(answer.body), "pipeline": shown}
    headers = {name: text for name, text in answer.headers.items() if name != "content-length"}
    return json_reply(body, headers)


async def _choose(request: Request, context: Context, wanted: PipelineRequest, terms: Terms) -> Chosen:
    reranker = _reranker(context, wanted)
    embedder = context.model_of_kind(wanted.embedding_model, "embedder", "pipeline")
    started_s = context.clock()
    limit = encoder_shape(embedder).max_tokens
    tokenizer = (await context.text_of(embedder)).tokenizer
    query, documents = await asyncio.to_thread(_encode, tokenizer, wanted, limit)
    ranked = await context.inference.embed_and_rank(
        embedder.name,
        query.ids,
        [document.ids for document in documents],
        candidates_wanted(len(documents), wanted.top_k, reranking=reranker is not None),
        request_key=request_id_of(request),
        priority=terms.priority,
        deadline=terms.deadline,
        client=principal_of(request).name,
    )
    tokens = len(query.ids) + sum(len(document.ids) for document in documents)
    context.metrics.prompt_tokens.labels(embedder.name).inc(tokens)
    times = {"embed_and_rank": _times(ranked, context.clock() - started_s)}
    scores = None
    if reranker is not None:
        started_s = context.clock()
        candidates = [wanted.documents[index] for index in ranked.indices]
        scored = await score_documents(
            request, context, reranker, query=wanted.query, documents=candidates, terms=terms
        )
        context.metrics.prompt_tokens.labels(reranker.name).inc(scored.tokens)
        times["rerank"] = _times(scored, context.clock() - started_s)
        scores = scored.scores
    return Chosen(
        embedder=embedder.name,
        reranker=reranker.name if reranker else None,
        considered=len(ranked.indices),
        candidates=choose(ranked.indices, ranked.scores, scores, wanted.top_k),
        truncated={n: document.truncated_tokens for n, document in enumerate(documents)},
        times_ms=times,
    )


def _reranker(context: Context, wanted: PipelineRequest) -> ModelDescription | None:
    """The reranker that was named, else the first one that is served, else none."""
    if wanted.rerank_model is None:
        return None
    if wanted.rerank_model not in ("", "default"):
        return context.model_of_kind(wanted.rerank_model, "reranker", "pipeline")
    return next((model for model in context.inference.models() if model.kind == "reranker"), None)


def _encode(tokenizer: TextTokenizer, wanted: PipelineRequest, limit: int) -> tuple[EncodedPair, list[EncodedPair]]:
    query = tokenizer.encode_single(wanted.query)
    if len(query.ids) > limit:
        raise too_long("query", len(query.ids), limit)
    return query, [tokenizer.encode_single(document, limit=limit) for document in wanted.documents]


async def _fit(context: Context, wanted: PipelineRequest, chosen: Chosen) -> list[Candidate]:
    """The chosen documents that fit the prompt beside the question and the answer."""
    model = context.model_of_kind(wanted.chat.model, "decoder", "pipeline")
    text = await context.text_of(model)
    texts = [wanted.documents[candidate.index] for candidate in chosen.candidates]

    def count() -> tuple[int, list[int]]:
        chat = wanted.chat
        bare = with_documents(chat.messages, wanted.query, [])
        prompt = chat_prompt(text.tokenizer, text.templates, bare, tools=chat.tools, extra=chat.template_extra)
        lengths = [len(text.tokenizer.encode_text(document_text(n, t))) for n, t in enumerate(texts, 1)]
        return len(prompt), lengths

    prompt, lengths = await asyncio.to_thread(count)
    length = context.inference.context_length(model.name)
    # A limit as long as the context says that the client did not think of one: half is left to the documents.
    reserved = min(wanted.chat.sampling.max_new_tokens, length // 2)
    room = length - prompt - reserved
    kept = [chosen.candidates[place] for place in fitting(lengths, room)]
    if not kept:
        raise ContextLengthExceeded(
            f"None of the chosen documents fits the prompt: the shortest has {min(lengths)} tokens, and of a context "
            f"of {length} tokens the question takes {prompt} and the answer {reserved}",
            hint="Send shorter documents, or lower generate.max_tokens.",
            param="documents",
        )
    return kept


def _shown(chosen: Chosen, kept: list[Candidate]) -> dict[str, Any]:
    documents = []
    for candidate in kept:
        entry: dict[str, Any] = {"index": candidate.index, "embedding_score": candidate.embedding_score}
        if candidate.rerank_score is not None:
            entry["rerank_score"] = candidate.rerank_score
        if chosen.truncated[candidate.index]:
            entry["truncated_tokens"] = chosen.truncated[candidate.index]
        documents.append(entry)
    used = {candidate.index for candidate in kept}
    return {
        "embedding_model": chosen.embedder,
        "rerank_model": chosen.reranker,
        "candidates": chosen.considered,
        "documents": documents,
        "left_out": [candidate.index for candidate in chosen.candidates if candidate.index not in used],
        "times_ms": dict(chosen.times_ms),
    }


def _times(result: RankedResult | Ranking, total_s: float) -> dict[str, float]:
    return {"queue": _ms(result.queue_s), "run": _ms(result.run_s), "total": _ms(total_s)}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
