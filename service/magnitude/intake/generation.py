"""From a checked request to a running generation: limits against the model, the task, the reader."""

from __future__ import annotations

import logging
from collections.abc import Callable

from starlette.requests import Request

from magnitude.engine.protocol import GrammarSpec, Overflow, SamplerSettings
from magnitude.errors import ContextLengthExceeded
from magnitude.intake.answer import AnswerReader
from magnitude.intake.context import Context, passage_of, principal_of, request_id_of
from magnitude.intake.sampling import Sampling, check_bias_ids
from magnitude.intake.terms import Terms
from magnitude.intake.timing import variant_header
from magnitude.models.description import ModelDescription
from magnitude.schedule.inference import GenerationTask
from magnitude.text.tokenizer import TextTokenizer

log = logging.getLogger("magnitude.intake")

# Longest answer whose beginning slides out of the context: the bound of engine.default_max_tokens. At 20 tokens a
# second it takes 14 hours, so it stops what was forgotten and nothing that somebody waits for.
_MAX_SLIDING_TOKENS = 1_048_576


def room_for_answer(
    prompt_tokens: int, context_tokens: int, wanted: int, *, overflow: Overflow = "stop", param: str
) -> int:
    """New tokens that fit; with the overflow "slide" the context does not bound them. Raises
    `ContextLengthExceeded`, with both numbers, when there is room for none."""
    if prompt_tokens >= context_tokens:
        raise ContextLengthExceeded(
            f"The prompt has {prompt_tokens} tokens; the context is {context_tokens} tokens, the answer included",
            hint="Send a shorter prompt, or raise engine.context_length if the model allows it.",
            param=param,
        )
    return min(wanted, _MAX_SLIDING_TOKENS if overflow == "slide" else context_tokens - prompt_tokens)


async def start_generation(
    request: Request,
    context: Context,
    *,
    model: ModelDescription,
    tokenizer: TextTokenizer,
    prompt: list[int],
    sampling: Sampling,
    terms: Terms,
    grammar: GrammarSpec | None,
    logprobs: int | None,
    shown_ids: frozenset[int] = frozenset(),
    tools: bool = False,
    param: str,
) -> AnswerReader:
    """Queue the generation. The caller owns the reader and must close it.

    `shown_ids` are special tokens whose text belongs to the answer (markers of tool calls).
    """
    passage = passage_of(request)
    passage.notes["model"] = model.name  # also for what is refused before there is an answer to count
    vocab_size = model.decoder.vocab_size if model.decoder else tokenizer.vocab_size
    check_bias_ids(sampling.sampler, vocab_size)
    room = room_for_answer(
        len(prompt),
        context.inference.context_length(model.name),
        sampling.max_new_tokens,
        overflow=sampling.overflow,
        param=param,
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
            priority=terms.priority,
            deadline=terms.deadline,
            task=terms.task,
            conversation=terms.conversation,
            expect=terms.expect,
            overflow=sampling.overflow,
            keep_kv=terms.keep,
            save_kv=terms.keep and sampling.save,
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
        started_s=passage.started_s,
        notes=passage.notes,
        transcript=_transcript(request, tokenizer, prompt) if context.settings.log.content else None,
    )


def _transcript(request: Request, tokenizer: TextTokenizer, prompt: list[int]) -> Callable[[list[int]], None]:
    """Logs what was said, token for token: only where the configuration asks for it."""
    request_id = request_id_of(request)

    def write(answer: list[int]) -> None:
        fields = {"request": request_id, "prompt": tokenizer.decode(prompt), "answer": tokenizer.decode(answer)}
        log.info("content", extra={"fields": fields})

    return write


def answer_headers(sampler: SamplerSettings, variant: str) -> dict[str, str]:
    """What an answer needs to be had again: the seed that was used, and the variant of the model, if it was one."""
    return {"X-Magnitude-Seed": str(sampler.seed), **variant_header(variant)}
