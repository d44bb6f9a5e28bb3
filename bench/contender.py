"""The orchestrator's side of a worker process: start it, ask it, end it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

PROJECT = Path(__file__).resolve().parent.parent


class ContenderPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker runs, in which environment, on which files."""

    name: str
    module: str
    python: str
    source: str
    arguments: tuple[str, ...] = ()


class ContenderFailed(Exception):
    """A worker answered with an error, or died."""


class GenerationTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one generation; `peers/worker.py` says what each begins and ends with."""

    prefill_s: float
    ttft_s: float
    decode_s: float


class Worker:
    """One running worker."""

    def __init__(self, plan: ContenderPlan) -> None:
        self.plan = plan
        self.facts: dict[str, str] = {}
        path = os.pathsep.join([str(PROJECT), str(PROJECT / "service")])
        self._process = subprocess.Popen(
            [plan.python, "-m", plan.module, *plan.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                # Its uploader would run beside the measured work, in some contenders and not in others.
                "ORT_DISABLE_TELEMETRY": "1",
            },
            text=True,
        )
        # The process whose memory counts: the worker itself, or the engine below it.
        self.pid = self._process.pid

    def start(self) -> None:
        """Libraries in, no model yet."""
        answer = self._ask(do="start")
        self.pid = answer["pid"]
        self.facts.update(answer["facts"])

    def load(self, threads: int, context: int) -> None:
        self.facts.update(self._ask(do="load", source=self.plan.source, threads=threads, context=context)["facts"])

    def generate(self, ids: list[int], steps: int) -> GenerationTimes:
        return msgspec.convert(self._ask(do="generate", ids=ids, steps=steps), GenerationTimes)

    def batch(self, prompts: list[list[int]], steps: int) -> GenerationTimes:
        """Of contenders that run several prompts side by side."""
        return msgspec.convert(self._ask(do="batch", prompts=prompts, steps=steps), GenerationTimes)

    def steps(self, past: int, rows: int, steps: int) -> float:
        """Of contenders that can stand at any position; all of these are in `peers/worker.py`."""
        return float(self._ask(do="steps", past=past, rows=rows, steps=steps)["decode_s"])

    def prompt(self, tokens: int) -> float:
        return float(self._ask(do="prompt", tokens=tokens)["prefill_s"])

    def logits(self, ids: list[int], file: Path) -> None:
        self._ask(do="logits", ids=ids, file=str(file))

    def costs(self) -> dict[str, dict[str, int]]:
        return self._ask(do="costs")

    def stop(self) -> None:
        """End the worker for certain."""
        try:
            if self._process.poll() is None:
                self._ask(do="stop")
                self._process.wait(10)
        except (ContenderFailed, subprocess.TimeoutExpired):
            pass
        finally:
            self._process.kill()
            self._process.wait()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._gone() from error
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(f"{self.plan.name}: {answer['error']}")
        return answer

    def _gone(self) -> ContenderFailed:
        return ContenderFailed(f"{self.plan.name}: the worker left with status {self._process.wait()}")
