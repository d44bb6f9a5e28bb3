"""The check after a boot: the service answers, answers right, and goes on so for a minute.

"It has booted" says nothing: what an update breaks shows in what the service does. So the check waits until the
service is ready, has it infer, and then looks at it every two seconds; whatever was started anew meanwhile begins the
minute again, with the inference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from magnitude.doctor.finding import Finding, Level
from magnitude.errors import MagnitudeError
from magnitude.models.description import ModelDescription
from magnitude.update.proof import Proof, Service, Wrong, prove
from magnitude.update.steady import Reading, Steadiness, observe
from magnitude.update.terms import Verdict

# A service that falls soon after its start does so again within a minute: systemd waits 30 s at most between
# starts, and an engine that dies while it loads takes seconds.
STEADY_S = 60.0
# Often enough to see a state that lasts for some seconds; what comes and goes between two looks shows in the counts.
POLL_S = 2.0
# A service that is being started anew refuses: inference that fails counts after so many times in a row.
TRIES = 3
CHECK = "boot"

log = logging.getLogger("magnitude.update")


class RunningService(Service, Protocol):
    """What the check asks of a service (`cli/client.py`). Raises `MagnitudeError`."""

    def readiness(self) -> tuple[bool, dict[str, Any]]: ...


Connect = Callable[[], AbstractContextManager[RunningService]]


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the check needs from around it. `connect` reaches the service or raises `MagnitudeError`; `models` are
    those that lie on the device by name; `clock` is monotonic; `told` hears how far it is, for people who watch."""

    connect: Connect
    models: dict[str, ModelDescription]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    steady_s: float = STEADY_S
    told: Callable[[str], None] = lambda line: None


class BootReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `took_s` until then."""

    verdict: Verdict
    findings: list[Finding]
    took_s: float


def check_boot(around: Surroundings, *, within_s: float) -> BootReport:
    """Check the running service; at most `within_s` until the minute is over. Raises nothing."""
    watch = _Watch(around)
    started_s = around.clock()
    while True:
        watch.look()
        now_s = around.clock()
        if watch.outcome is None and now_s - started_s >= within_s:
            watch.outcome = watch.too_late(within_s)
        if watch.outcome is not None:
            findings = watch.findings()
            return BootReport(verdict=watch.outcome, findings=findings, took_s=round(now_s - started_s, 1))
        around.sleep(POLL_S)


class _Watch:
    """The state of one check."""

    def __init__(self, around: Surroundings) -> None:
        self.outcome: Verdict | None = None
        self._around = around
        self._steady = Steadiness()
        self._reading = Reading(at_s=0.0)
        self._proofs: list[Proof] | None = None
        self._failed_tries = 0
        self._failure = ""
        self._said = ""

    def look(self) -> None:
        """Look at the service once, and have it infer where that has not been done yet."""
        around = self._around
        try:
            with around.connect() as service:
                self._reading = _read(service, around.clock)
                before_s = self._steady.since_s
                self._steady = observe(self._steady, self._reading)
                if before_s is not None and self._steady.since_s != before_s:
                    self._proofs = None  # another process: it is to show it anew
                    self._say(self._steady.breaks[-1])
                if self._steady.since_s is not None and self._proofs is None:
                    self._prove(service)
        except MagnitudeError as error:
            self._reading = Reading(at_s=around.clock(), reasons=(error.message,))
            self._steady = observe(self._steady, self._reading)
            self._proofs = None
        if self._proofs is not None and self._steady.green_s(around.clock()) >= around.steady_s:
            self.outcome = self._judged()

    def too_late(self, within_s: float) -> Verdict:
        """The verdict when the time is over."""
        parts = [f"not well for {self._around.steady_s:.0f} s without a break within {within_s:.0f} s"]
        parts += [self._failure] if self._failure else []
        parts += self._steady.breaks or self._reading.reasons
        return Verdict(passed=False, reason="; ".join(parts))

    def findings(self) -> list[Finding]:
        """What was found, for people and for the record."""
        assert self.outcome is not None
        found = [_proof_finding(proof) for proof in self._proofs or []]
        if self._proofs == []:
            found.append(
                _finding("notice", "The service serves no model that could be asked", "`magnitude import SOURCE`")
            )
        if self.outcome.passed:
            title = f"The service has answered right and was well for {self._around.steady_s:.0f} s without a break"
            found.append(_finding("ok", title, detail="\n".join(self._reading.reasons)))
        else:
            advice = "Look at `journalctl -b -u magnitude`, and run `magnitude doctor`"
            found.append(_finding("error", "The service is not well after this boot", advice, self.outcome.reason))
        return found

    def _prove(self, service: Service) -> None:
        self._say("the service is ready: having it infer")
        try:
            self._proofs = prove(service, self._around.models.get)
        except Wrong as error:
            self.outcome = Verdict(passed=False, reason=error.message)
        except MagnitudeError as error:
            self._failed_tries += 1
            self._failure = f"inference failed: {error.message}"
            self._say(self._failure)
            if self._failed_tries >= TRIES:
                self.outcome = Verdict(passed=False, reason=f"inference failed {TRIES} times: {error.message}")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.outcome = Verdict(passed=False, reason=f"the service's answer makes no sense: {error!r}")
        else:
            self._failed_tries, self._failure = 0, ""

    def _judged(self) -> Verdict:
        if self._reading.persistence:
            return Verdict(passed=True)
        return Verdict(passed=False, reason=f"nothing is kept: {'; '.join(self._reading.reasons)}")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._around.told(line)


def _read(service: RunningService, clock: Callable[[], float]) -> Reading:
    """One look. Raises `MagnitudeError` when it does not answer, or not with all that is judged here."""
    ready, said = service.readiness()
    health = service.get("/healthz")
    try:
        return Reading(
            at_s=clock(),
            ready=ready,
            uptime_s=float(health["uptime_s"]),
            engine_restarts=int(said["engine_restarts"]),
            persistence=said["persistence"] == "on",
            reasons=tuple(str(reason) for reason in said.get("reasons", [])),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MagnitudeError(f"the service's health makes no sense: {error!r}") from error


def _proof_finding(proof: Proof) -> Finding:
    how = (
        f"{proof.compared} golden texts as at import" if proof.compared else "no golden text that a client could send"
    )
    return _finding("ok", f"{proof.model} has inferred", detail=f"{proof.words}; {how}")


def _finding(level: Level, title: str, advice: str = "", detail: str = "") -> Finding:
    return Finding(check=CHECK, level=level, title=title, detail=detail, advice=advice)
