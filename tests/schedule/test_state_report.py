"""What the service says of its engine in its state."""

from magnitude.engine.protocol import Heartbeat
from magnitude.feedback.records import Feedback
from magnitude.schedule.figures import ScheduleFigures
from magnitude.schedule.inference import ServiceState
from magnitude.schedule.report import Watched, health_of, state_of
from magnitude.supervise.lifecycle import MANY_LOSSES, Begin, EngineLifecycle, Exited, ModelsReady, SaidHello


class Engine:
    """An engine as it is seen from outside, with its last heartbeat."""

    pid = 7
    spare_pid = None
    spare_ready = False
    last_recovery = None
    recycles = 0

    def __init__(self, heartbeat: Heartbeat | None = None, recent_losses: int = 0) -> None:
        self.lifecycle = EngineLifecycle(load_deadline_s=1.0, step_deadline_s=1.0)
        self.heartbeat = heartbeat
        self.recent_losses = recent_losses

    async def recycle(self, reason: str) -> None:
        raise AssertionError("nobody who only looks replaces an engine")


def state_with(heartbeat: Heartbeat | None) -> ServiceState:
    engine = Engine(heartbeat)
    health = health_of([], engine, waiting=0, running=0, uptime_s=1.0)
    return state_of([], engine, health, Feedback(), ScheduleFigures(), residency={}, watched=Watched())


def test_requests_that_the_engine_counts_as_open_are_told_beside_the_service_s_own_count() -> None:
    state = state_with(Heartbeat(steps=9, open_requests=2, busy_s=0.0, rss_bytes=1000))
    assert (state.engine_open_requests, state.health.running) == (2, 0)


def test_an_engine_that_was_never_heard_has_nothing_open() -> None:
    assert state_with(None).engine_open_requests == 0


def test_an_engine_that_is_lost_again_and_again_makes_the_service_degraded_but_not_unready() -> None:
    engine = Engine(recent_losses=MANY_LOSSES)
    for event in (Begin(), SaidHello(True), ModelsReady(), Exited("SIGSEGV", productive=True)):
        engine.lifecycle.apply(event, 0.0)
    for event in (SaidHello(True), ModelsReady()):
        engine.lifecycle.apply(event, 1.0)
    health = health_of([], engine, waiting=0, running=0, uptime_s=1.0)
    assert health.ready
    assert len(health.reasons) == 1 and "SIGSEGV" in health.reasons[0]
    engine.recent_losses = MANY_LOSSES - 1
    assert health_of([], engine, waiting=0, running=0, uptime_s=1.0).reasons == []
