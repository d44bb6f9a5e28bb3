"""From a checked request to a running generation: limits against the model, the task, the reader."""

from __future__ import annotations

import logging
from collections.abc import Callable

from starlette.requests import Request

from magnitude.engine.protocol import GrammarSpec, SamplerSettings
from magnitude.errors import ContextLengthExceeded
from magnitude.intake.answer import AnswerEnd, AnswerReader
from magnitude.intake.context import Context, principal_of, request_id_of
from magnitude.intake.sampling import Sampling, check_bias_ids
from magnitude.models.description import ModelDescription
from magnitude.schedule.inference import GenerationTask
from magnitude.text.tokenizer import TextTokenizer

log = logging.getLogger("magnitude.intake")


def room_for_answer(prompt_tokens: int, context_tokens: int, wanted: int, *, param: str) -> int:
    """New tokens that fit. Raises `ContextLengthExceeded`, with both numbers, when there is room for none."""
    if prompt_tokens >= context_tokens:
        raise ContextLengthExceeded(
            f"The prompt has {prompt_tokens} tokens; the context is {context_tokens} tokens, the answer included",
            hint="Send a shorter prompt, or raise engine.context_length if the model allows it.",
            param=param,
        )
    return min(wanted, context_tokens - prompt_tokens)


async def start_generation(
    request: Request,
    context: Context,
    *,
    model: ModelDescription,
    tokenizer: TextTokenizer,
    prompt: list[int],
    sampling: Sampling,
    grammar: GrammarSpec | None,
    logprobs: int | None,
    shown_ids: frozenset[int] = frozenset(),
    tools: bool = False,
    param: str,
) -> AnswerReader:
    """Queue the generation. The caller owns the reader and must close it.

    `shown_ids` are special tokens whose text belongs to the answer (markers of tool calls).
    """
    vocab_size = model.decoder.vocab_size if model.decoder else tokenizer.vocab_size
    check_bias_ids(sampling.sampler, vocab_size)
    room = room_for_answer(
        len(prompt), context.inference.context_length(model.name), sampling.max_new_tokens, param=param
    )
    generation = await context.inference.generate(
        GenerationTask(
            request_key=request_id_of(request),
            model=model.name,
            prompt=prompt,
            max_new_tokens=room,
            sampler=sampling.sampler,
            grammar=grammar,
            stop_ids=model.special.eos,
            logprobs=logprobs,
            client=principal_of(request).name,
        )
    )
    return AnswerReader(
        generation,
        tokenizer,
        model=model.name,
        prompt_tokens=len(prompt),
        stops=sampling.stops,
        hidden=(tokenizer.special_ids | frozenset(model.special.eos)) - shown_ids,
        tools=tools,
        metrics=context.metrics,
        clock=context.clock,
        started_s=request.scope["magnitude"].started_s,
        notes=request.scope["magnitude"].notes,
        transcript=_transcript(request, tokenizer, prompt) if context.settings.log.content else None,
    )


def _transcript(request: Request, tokenizer: TextTokenizer, prompt: list[int]) -> Callable[[list[int]], None]:
    """Logs what was said, token for token: only where the configuration asks for it."""
    request_id = request_id_of(request)

    def write(answer: list[int]) -> None:
        fields = {"request": request_id, "prompt": tokenizer.decode(prompt), "answer": tokenizer.decode(answer)}
        log.info("content", extra={"fields": fields})

    return write


def seed_header(sampler: SamplerSettings) -> dict[str, str]:
    """The seed that was used, so that an answer can be had again."""
    return {"X-Magnitude-Seed": str(sampler.seed)}


def time_headers(end: AnswerEnd) -> dict[str, str]:
    """Where the time went, in milliseconds."""
    return {f"X-Magnitude-{name.title()}-Ms": f"{ms:.1f}" for name, ms in times_ms(end).items()}


def times_ms(end: AnswerEnd) -> dict[str, float]:
    return {
        "queue": round(end.queue_s * 1000, 1),
        "prefill": round(end.prefill_s * 1000, 1),
        "decode": round(end.decode_s * 1000, 1),
    }
