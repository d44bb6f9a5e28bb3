"""What admission's tests share: a table of KV slots that is one in the simplest way, and short words for events."""

from typing import Any

from magnitude.schedule.admission import Admission
from magnitude.schedule.events import Effect, Ended, EngineUp, Event, Expire, Pause, Start, Submit
from magnitude.schedule.inference import Deadline


class Slots:
    """`Places` with `count` slots, lowest free number first; a request keeps its slot until `free`. All models are
    loaded but those in `absent`; those in `leaving` start nothing new."""

    def __init__(self, count: int = 1000) -> None:
        self.count = count
        self.held: dict[int, int] = {}
        self.absent: set[str] = set()
        self.leaving: set[str] = set()

    def ready(self, model: str, *, begun: bool) -> bool:
        return model not in self.absent and (begun or model not in self.leaving)

    def place(self, request_id: int, now_s: float) -> int | None:
        if request_id not in self.held:
            taken = set(self.held.values())
            slot = next((slot for slot in range(self.count) if slot not in taken), None)
            if slot is None:
                return None
            self.held[request_id] = slot
        return self.held[request_id]

    def free(self, request_id: int) -> None:
        self.held.pop(request_id, None)


class Bench:
    """Admission with its slots and a clock that only the test moves."""

    def __init__(self, *, slots: int = 2, max_queue: int = 32, kv_slots: int = 1000, **options: Any) -> None:
        self.places = Slots(kv_slots)
        self.admission = Admission(max_queue=max_queue, places=self.places, **options)
        self.now_s = 0.0
        self.running: list[int] = []
        self.apply(EngineUp({"m": slots}))

    def apply(self, event: Event, after_s: float = 0.0) -> list[Effect]:
        self.now_s += after_s
        effects = self.admission.apply(event, self.now_s)
        self.running += starts(effects)
        return effects

    def submit(self, request_id: int, after_s: float = 0.0, **fields: Any) -> list[Effect]:
        fields = {"lane": "generation", "model": "m"} | fields
        return self.apply(Submit(request_id, **fields), after_s)

    def end(self, request_id: int, after_s: float = 0.0, **fields: Any) -> list[Effect]:
        self.places.free(request_id)
        self.running.remove(request_id)
        return self.apply(Ended(request_id, **fields), after_s)

    def order_of_starts(self) -> list[int]:
        """End whatever runs, one at a time, until nothing waits; the order in which the waiting ones started."""
        order = []
        while self.running:
            order += starts(self.end(self.running[0]))
        return order


def starts(effects: list[Effect]) -> list[int]:
    return [effect.request_id for effect in effects if isinstance(effect, Start)]


def pauses(effects: list[Effect]) -> list[int]:
    return [effect.request_id for effect in effects if isinstance(effect, Pause)]


def expiries(effects: list[Effect]) -> list[Expire]:
    return [effect for effect in effects if isinstance(effect, Expire)]


def hard(at_s: float) -> Deadline:
    return Deadline(at_s=at_s, hard=True)


def soft(at_s: float, *may_cut: Any) -> Deadline:
    return Deadline(at_s=at_s, hard=False, may_cut=may_cut or ("tokens",))
