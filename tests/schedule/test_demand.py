from magnitude.schedule.demand import Demand, DemandTeller, demands
from magnitude.schedule.open_tasks import OpenTask


class Task(OpenTask):
    def __init__(self, model: str, *, started: bool = False) -> None:
        super().__init__(1, model, close=lambda task, record: None, withdraw=lambda request_id: None)
        self.has_started = started


def test_demand_counts_what_was_begun_and_says_whether_anything_waits() -> None:
    tasks = [Task("a", started=True), Task("a"), Task("b", started=True)]
    assert demands(tasks, {"c"}) == {"a": Demand(1, True), "b": Demand(1, False), "c": Demand(0, True)}


def test_every_change_is_told_once_and_what_telling_brings_about_is_told_too() -> None:
    now = {"a": Demand(1, False)}
    told: list[tuple[str, Demand]] = []

    def tell(model: str, demand: Demand) -> None:
        told.append((model, demand))
        if model == "a":
            now["b"] = Demand(0, True)
            teller.changed()

    teller = DemandTeller(["a", "b"], lambda: now, tell)
    teller.changed()
    teller.changed()
    assert told == [("a", Demand(1, False)), ("b", Demand(0, True))]
    del now["a"]
    teller.changed()
    assert told[-1] == ("a", Demand(0, False))


def test_after_a_loss_everything_is_told_again() -> None:
    told: list[str] = []
    teller = DemandTeller(["a", "b"], lambda: {"a": Demand(1)}, lambda model, demand: told.append(model))
    teller.changed()
    teller.forget()
    assert told == ["a", "a", "b"]
