"""What a tree gains on a board that it was not grown from, each in turn. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnitude.policy.trained import Gain, Loss
from magnitude.policy.tree import TREE_PARTS, Leaf, Tree, advise
from magnitude.training.cells import ServedModel
from magnitude.training.costs import TrainingRules
from magnitude.training.growing import facts_of, features_in, tried_as
from magnitude.training.validation import Comparison, compare, judged

Grow = Callable[[Sequence[ServedModel], TrainingRules], Tree | None]


def prove_tree(
    models: Sequence[ServedModel], rules: TrainingRules, grow: Grow
) -> tuple[tuple[Gain, ...], tuple[Loss, ...]]:
    """Grow without each board in turn, and compare what the tree says there with the default, where both were
    tried."""
    gains: list[Gain] = []
    losses: list[Loss] = []
    for board in sorted({model.board for model in models}):
        tree = grow([model for model in models if model.board != board], rules)
        if tree is None:
            continue
        for model in models:
            if model.board == board:
                board_gains, board_losses = judged(model, "tree", comparisons(model, tree), rules)
                gains += board_gains
                losses += board_losses
    return tuple(gains), tuple(losses)


def comparisons(model: ServedModel, tree: Tree) -> list[Comparison]:
    """What that tree says in each situation of a model, where it was tried."""
    board = facts_of(model)
    found = []
    for cell in model.cells:
        if cell.part not in TREE_PARTS:
            continue
        advice = advise(tree, cell.part, features_in(cell, model, board))
        leaf = Leaf(threads_share=advice.threads_share, of=advice.of, chunk=advice.chunk)
        chosen = tried_as(leaf, cell, model, board)
        comparison = compare(cell, chosen, slice(0, len(cell.tried[0].blocks))) if chosen is not None else None
        if comparison is not None:
            found.append(comparison)
    return found
