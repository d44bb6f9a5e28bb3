"""From one model to another: time from a request to its first prefill step.

Two decoders are loaded and asked in the order A A B B A A ..., so that every other request goes to the model that ran
before and the ones between to the other one. A third decoder is not loaded: it is asked, leaves memory, and is asked
again. Its files are in the page cache, since they have just been written or read.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.chat import COLD, Reply, chat
from bench.service_process import ServiceFailed, ServiceProcess, running_service
from bench.spread import Spread

# What the first prefill step of a warm model is to begin after.
GOAL_S = 0.050
KEEP_ALIVE_S = 1.0
GONE_TIMEOUT_S = 60.0
# A switch is not to be measured together with a long prefill: about fifty tokens, one step.
QUESTION = (
    "Request {number}. Which of the seven hills of Rome lies nearest to the river, and what stands on it today?"
)


class SwitchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `before_prefill`: from the request's arrival to the first prefill step; `ttft`: to the first token, on
    the client's clock. `same`: the model ran before; `warm`: another one did; `cold`: it was not in memory; None
    where that could not be measured, for the reason in `no_cold`."""

    rounds: int
    same_before_prefill_s: Spread
    warm_before_prefill_s: Spread
    same_ttft_s: Spread
    warm_ttft_s: Spread
    ttft_difference_s: Spread
    cold_before_prefill_s: Spread | None
    cold_ttft_s: Spread | None
    no_cold: str

    @property
    def missed(self) -> list[str]:
        """What was not reached, in words."""
        found = [f"loading was not measured: {self.no_cold}"] if self.no_cold else []
        if self.warm_before_prefill_s.median > GOAL_S:
            found.append(f"switch to a loaded model: {self.warm_before_prefill_s.median * 1000:.0f} ms, goal 50")
        return found


def measure_switch(
    model: Path, work: Path, rounds: int, cold_rounds: int, progress: Callable[[str], None] = lambda _: None
) -> SwitchResult:
    """Serve `model` under three names from the empty folder `work`. Raises `ServiceFailed`."""
    # The default chat model is the first one by name.
    name, second, on_request = model.name, f"{model.name}-second", f"{model.name}-third"
    (work / name).symlink_to(model.absolute(), target_is_directory=True)
    for copy in (second, on_request):
        # Files of their own: as two models they share neither weights nor pages of the page cache.
        shutil.copytree(model, work / copy)
    settings = {"models": {"load": [second], "keep_alive_s": KEEP_ALIVE_S}}
    with running_service(work, settings) as service:
        for each in (name, second) * 2:
            _ask(service, each, 0)
        same: list[Reply] = []
        warm: list[Reply] = []
        for at in range(rounds):
            progress(f"round {at + 1}")
            for number, each in enumerate((name, second)):
                # The round before ended with the other model.
                warm.append(_ask(service, each, 2 * at + number))
                same.append(_ask(service, each, 2 * at + number + 1000))
        progress("a model that is not loaded")
        cold: list[Reply] = []
        no_cold = ""
        try:
            # The first load of a model also compares it with its golden set.
            for at in range(cold_rounds + 1):
                reply = _ask(service, on_request, at)
                cold += [reply] if at else []
                _wait_until_gone(service, on_request)
        except ServiceFailed as error:
            no_cold = str(error)
    return SwitchResult(
        rounds=rounds,
        same_before_prefill_s=Spread.of([reply.before_prefill_s for reply in same]),
        warm_before_prefill_s=Spread.of([reply.before_prefill_s for reply in warm]),
        same_ttft_s=Spread.of([reply.ttft_s for reply in same]),
        warm_ttft_s=Spread.of([reply.ttft_s for reply in warm]),
        ttft_difference_s=Spread.of([b.ttft_s - a.ttft_s for a, b in zip(same, warm, strict=True)]),
        cold_before_prefill_s=Spread.of([reply.before_prefill_s for reply in cold]) if cold else None,
        cold_ttft_s=Spread.of([reply.ttft_s for reply in cold]) if cold else None,
        no_cold=no_cold,
    )


def _ask(service: ServiceProcess, model: str, number: int) -> Reply:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION.format(number=number)}],
        "max_tokens": 1,
        "temperature": 0,
    }
    return chat(service.port, body, COLD)


def _wait_until_gone(service: ServiceProcess, model: str) -> None:
    """Until the model has left memory. Raises `ServiceFailed` when it stays."""
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while any(
        held.name == model and getattr(held, "residency", "loaded") != "absent" for held in service.state().models
    ):
        if time.monotonic() > deadline:
            raise ServiceFailed(f"{model} stayed in memory for {GONE_TIMEOUT_S:g} s")
        time.sleep(0.1)
