"""A model's first work of its life in this service: short, real, and before anybody is told that it can serve.

The golden set proves a model once for a board and then counts as known. This is run at every start of the service,
also because the first run is slow (memory is touched for the first time) and no client should be the one to pay.
"""

from __future__ import annotations

from magnitude.engine.protocol import Embed, Failed, Finished, Generate, SamplerSettings, ToService, Vectors
from magnitude.errors import MagnitudeError, ModelError
from magnitude.schedule.engine_errors import error_from
from magnitude.schedule.fresh_engine import FreshEngine
from magnitude.schedule.plan import ModelPlan

# One token comes from the prefill, the second from a decode step: both ways are taken.
NEW_TOKENS = 2
# Ids that every vocabulary has; what they mean does not matter.
PROMPT = (0, 0, 0, 0)


async def warm_up(plan: ModelPlan, engine: FreshEngine) -> MagnitudeError | None:
    """Why the model, which is loaded, cannot work; None when it did, or when nothing is known of its inputs."""
    name, request_id = plan.description.name, engine.next_id()
    answer: ToService
    if plan.description.decoder is not None:
        generate = Generate(
            request_id=request_id,
            model=name,
            slot=plan.scratch_slot,
            prompt=list(PROMPT),
            max_new_tokens=NEW_TOKENS,
            sampler=SamplerSettings(temperature=0.0),
            prefill_chunk=plan.provision.prefill_chunk,
        )
        answer = await engine.ask(generate, request_id, whole=True)
        if isinstance(answer, Finished) and answer.new_tokens == NEW_TOKENS:
            return None
    elif plan.description.encoder is not None:
        answer = await engine.ask(Embed(request_id=request_id, model=name, inputs=[list(PROMPT)]), request_id)
        if isinstance(answer, Vectors):
            return None
    else:
        return None
    if isinstance(answer, Failed):
        return error_from(answer)
    return ModelError(
        f"{name} did not do its first work: it was answered with {type(answer).__name__}",
        code="warm_up_failed",
        hint="See the log of the engine; import the model again if it stays so",
    )
