"""From a fleet's figures to a trained table: choose, prove by cross-validation, and say where it would lose. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magnitude.errors import MagnitudeError
from magnitude.policy.trained import Gain, Loss, ModelTable, Proof, Trained
from magnitude.policy.tree import Tree, default_tree
from magnitude.training.cells import Fleet, ServedModel
from magnitude.training.choosing import entries, pick, totals
from magnitude.training.costs import TrainingRules
from magnitude.training.growing import grow
from magnitude.training.tree_proof import prove_tree
from magnitude.training.validation import prove_table


class NothingLearned(MagnitudeError):
    """There is neither a table nor a tree to ship."""

    code = "training_refused"


def train(
    fleet: Fleet, rules: TrainingRules, *, files: int = 1, with_tree: bool = True, made_at_s: float = 0.0
) -> Trained:
    """Tables for all models of all boards, and a tree. It may only be shipped where `proof.losses` is empty."""
    gains: list[Gain] = []
    losses: list[Loss] = []
    notes: list[str] = []
    tables = []
    for model in fleet.models:
        table, proof_gains, proof_losses, unproven = _table(model, rules)
        gains += proof_gains
        losses += proof_losses
        if table.entries:
            tables.append(table)
        if unproven:
            notes.append(
                f"{model.model} on {model.board}: {_situations(unproven)} left out, tried too seldom to be proven"
            )
    tree = None
    if with_tree:
        tree, tree_gains, tree_losses, note = _tree(fleet.models, rules)
        gains += tree_gains
        losses += tree_losses
        notes += [note] if note else []
    if fleet.unreadable:
        notes.append(f"{len(fleet.unreadable)} strategies are of another version: their tasks were left out")
    return Trained(
        tables=tuple(tables),
        tree=tree,
        proof=Proof(
            tasks=fleet.tasks,
            files=files,
            boards=fleet.boards,
            tolerance=rules.tolerance,
            gains=tuple(gains),
            losses=tuple(losses),
            notes=tuple(notes),
        ),
        made_at_s=made_at_s,
    )


def _table(model: ServedModel, rules: TrainingRules) -> tuple[ModelTable, Sequence[Gain], Sequence[Loss], int]:
    """The table, what it gains and loses, and how many situations were left out because held-back time did not say
    anything of them."""
    proof = prove_table(model, rules)
    sums = totals(model.cells)
    rows, rejected = entries(model.cells, sums, pick(model.cells, sums, rules))
    proven = tuple(row for row in rows if (row.part, row.key, row.chosen) in proof.confirmed)
    table = ModelTable(
        board=model.board,
        model=model.model,
        model_hash=model.model_hash,
        ort_version=model.ort_version,
        entries=proven,
        rejected=rejected,
        samples=model.tasks,
    )
    return table, proof.gains, proof.losses, len(rows) - len(proven)


def _tree(
    models: Sequence[ServedModel], rules: TrainingRules
) -> tuple[Tree | None, Sequence[Gain], Sequence[Loss], str]:
    """The tree, what it gains and loses on boards that it was not grown from, and why there is none."""
    boards = {model.board for model in models}
    if len(boards) < 2:
        return None, (), (), "no tree: it is proven by leaving out a board, and there is only one"
    tree = grow(models, rules)
    if tree is None:
        return None, (), (), "no tree: nothing was compared that other boards could use"
    gains, losses = prove_tree(models, rules, grow)
    shipped, _ = prove_tree(models, rules, lambda _models, _rules: default_tree())
    ours, theirs = _overall(gains), _overall(shipped)
    if ours <= theirs:
        # What it loses is of no matter where it is not shipped.
        return None, gains, (), f"no tree: on other boards it saves {ours:.1%}, the shipped one {theirs:.1%}"
    return tree, gains, losses, f"on other boards the tree saves {ours:.1%}, the shipped one {theirs:.1%}"


def _overall(gains: Sequence[Gain]) -> float:
    """The mean over boards, models and parts: none counts more for having more records."""
    return float(np.mean([gain.gain for gain in gains if not gain.key] or [0.0]))


def _situations(count: int) -> str:
    return f"{count} situation{'' if count == 1 else 's'}"
