"""Strategy loops of a service that is not there, over real files."""

from __future__ import annotations

from pathlib import Path

from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import ModelNotFound
from magnitude.policy.dump_changes import Change
from magnitude.policy.dump_exchange import Running
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Binding, Choice, Entry, Evidence, Learned, Rejected
from magnitude.policy.pinned import Means
from magnitude.policy.strategy import Strategy

TWO, FOUR = (Choice(session=SessionSpec(threads=threads)) for threads in (2, 4))


def learned_of(model: str, *, samples: int = 90, ort_version: str = "1.32.0", board: str = "pi5-bare") -> Learned:
    binding = Binding(
        board=board, model=model, model_hash=model[0] * 64, ort_version=ort_version, cpu_features=("asimd",)
    )
    evidence = (
        Evidence(choice=TWO, cost_s=0.011, log_spread=0.05, weight=float(samples)),
        Evidence(choice=FOUR, cost_s=0.016, log_spread=0.05, weight=20.0),
    )
    return Learned(
        binding=binding,
        entries=(Entry(part="decode", key="rows=1 cores=4 clock=0.9", chosen=TWO, evidence=evidence),),
        rejected=(Rejected(part="decode", key="rows=1 cores=4 clock=0.9", choice=FOUR, reason="tasks timed out"),),
        samples=samples,
    )


class FakeStrategies:
    """Says what it was told; `held` are the calls of `hold`."""

    def __init__(self, folder: Path, *models: str) -> None:
        self._dumps = Dumps(folder)
        self.known = {model: learned_of(model) for model in models}
        self.held: list[float] = []
        self.reread_models: list[str] = []

    @property
    def dumps(self) -> Dumps:
        return self._dumps

    def learned(self) -> dict[str, Learned]:
        return dict(self.known)

    def running(self, model: str) -> Running | None:
        if model not in self.known:
            raise ModelNotFound(model)
        assert TWO.session is not None
        strategy = Strategy(prefill=TWO.session, decode=TWO.session)
        return Running(strategy=strategy, strategy_id=strategy.strategy_id, in_words=strategy.in_words, since_s=5.0)

    def means(self, model: str) -> Means | None:
        return Means(cpus=tuple(range(8)), usable=8, decodes=model != "tiny-embed")

    def hold(self, hold_s: float) -> None:
        self.held.append(hold_s)

    def held_s(self) -> float:
        return self.held[-1] if self.held else 0.0

    async def reread(self, model: str, change: Change) -> None:
        self.reread_models.append(model)
        if change in ("pinned", "unpinned"):
            return
        found = self._dumps.load(self.known[model].binding)
        self.known[model] = found.learned or Learned(binding=self.known[model].binding)
