"""What a measurement asks of a service's strategy loops, over its unix socket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from bench.service_process import ServiceFailed, ServiceProcess
from magnitude.engine.session_spec import SessionSpec
from magnitude.schedule.strategy_control import MOST_HOLD_S
from magnitude.schedule.strategy_report import StrategyState

ROUTE = "/v1/magnitude/strategy"
# A session of a small model takes half a second to make, and its comparison with the model's own some seconds of idle
# time; a loop is there once its model is loaded and has passed its golden set.
PATIENCE_S = 120.0
POLL_S = 0.1
# How much of the processor it has is looked at every two seconds.
SEEN_S = 10.0


class StrategyClient:
    """Of one service."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        transport = httpx.HTTPTransport(uds=str(service.home / "run/magnitude.sock"))
        self._client = httpx.Client(transport=transport, base_url="http://magnitude", timeout=30)

    def state(self, model: str) -> StrategyState:
        return self.service.state().strategy[model]

    def hold(self, on: bool) -> None:
        """Let every model run as it was loaded, or go on."""
        self._post(hold=MOST_HOLD_S if on else 0.0)

    def pin(self, model: str, **parts: Any) -> None:
        """Fix `decode` and `prefill` (threads) and `chunk`, as soon as the service sees the processor that this
        needs. Raises `ServiceFailed`."""
        deadline = time.monotonic() + SEEN_S
        while True:
            try:
                return self._post(model=model, pin=parts)
            except ServiceFailed:
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_S)

    def wait_for_loop(self, model: str) -> None:
        """Until it has one that chooses. Raises `ServiceFailed`."""
        self._wait(lambda: self.state(model).on, f"{model} has no strategy loop")

    def wait_until(self, model: str, *, prefill: SessionSpec, decode: SessionSpec | None = None) -> None:
        """Until runs of the model go to these sessions. Raises `ServiceFailed`."""

        def there() -> bool:
            strategy = self.state(model).strategy
            return (
                strategy is not None and strategy.prefill == prefill and (decode is None or strategy.decode == decode)
            )

        said = f"prompts by {prefill.session_id}"
        self._wait(
            there, f"{model} does not come to run {said if decode is None else f'{said}, {decode.session_id}'}"
        )

    def _wait(self, there: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not there():
            if time.monotonic() > deadline:
                raise ServiceFailed(f"{failure}:\n{self.service.log_tail()}")
            time.sleep(POLL_S)

    def _post(self, **body: Any) -> None:
        reply = self._client.post(ROUTE, json=body)
        if reply.status_code != 200:
            raise ServiceFailed(f"{ROUTE} answers {reply.status_code}: {reply.text[:500]}")
