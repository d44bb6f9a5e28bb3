"""A simulated engine under the strategy loop of the service: the very `policy.optimizer.Optimizer` that runs
there."""

from __future__ import annotations

from magnitude.board.profile import BoardProfile
from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.optimizer import Optimizer
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.tree import facts_of_board
from magnitude.simulate.engine import SimulatedEngine
from magnitude.simulate.load import Load


def all_cores(profile: BoardProfile) -> int:
    """Threads of an engine that knows nothing of clusters: one for each CPU."""
    return sum(len(cluster.cpus) for cluster in profile.clusters)


def optimized_engine(profile: BoardProfile, load: Load) -> SimulatedEngine:
    """The load's model on that board, started with a thread on each CPU and optimised from there by the shipped
    rules. Nothing is known beforehand; chance is the load's."""
    own = SessionSpec(threads=all_cores(profile))
    facts = ModelFacts(
        name=load.model.name,
        kind="decoder",
        own=own,
        max_batch=load.slots,
        weight_bytes=round(load.model.weight_bytes),
    )
    cpus = tuple(cpu for cluster in profile.clusters for cpu in cluster.cpus)
    optimizer = Optimizer(facts, Rules(), ceilings=facts_of_board(profile, cpus))
    return SimulatedEngine(optimizer, own, seed=load.seed, added_bytes=facts.weight_bytes)
