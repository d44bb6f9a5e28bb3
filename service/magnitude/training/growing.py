"""Growing a tree for boards that have no table of their own: which rule is best, by features that every board has.

scikit-learn grows it; what comes out is `policy.tree.Tree`, a few plain comparisons."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from magnitude.board.profiles import load_profile, profile_names
from magnitude.policy.learned import Choice
from magnitude.policy.situation import Heat, Situation
from magnitude.policy.tree import (
    BANDWIDTH_THRESHOLD,
    FEATURES,
    HEAT_LEVEL,
    TREE_PARTS,
    Advice,
    BoardFacts,
    Feature,
    Features,
    Leaf,
    ModelWork,
    Node,
    Split,
    Tree,
    TreePart,
    facts_of_board,
    features_of,
)
from magnitude.training.cells import FAILED, OK, Cell, Floats, ServedModel
from magnitude.training.choosing import LEAST_TASKS, pick, totals
from magnitude.training.costs import TrainingRules, log_cost

# Shares of the big cores that a rule may name: on boards of two, four and eight of them each is a number of cores.
SHARES = (0.25, 0.5, 0.75, 1.0)
# Rules that differ by less in a situation are equally good there.
ALIKE = 0.01
# A tree is for people and for boards nobody has seen: few comparisons, each side resting on two situations at least.
MOST_LEAVES = 6
DEEPEST = 3
LEAST_EXAMPLES = 2
# What a rule is charged where it was never tried: more than rules mostly differ, so that a leaf's rule is one that
# was tried in most of it.
UNTRIED = 0.5
# A prompt's time does not depend on how many decode, nor a step's on the prompt.
_BY_PART: dict[TreePart, tuple[Feature, ...]] = {
    "decode": tuple(name for name in FEATURES if name != "tokens"),
    "prefill": tuple(name for name in FEATURES if name != "rows"),
    "encode": tuple(name for name in FEATURES if name != "rows"),
}


class Example(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One situation of one model on one board. `log_costs` are of all rules against the default's (NaN: not tried),
    `weight` what it counts for: all boards count the same together."""

    part: TreePart
    features: Features
    log_costs: Floats
    weight: float


def facts_of(model: ServedModel) -> BoardFacts:
    """The board as records tell it: by its profile where it has one, else by how the model was loaded, which is with
    a thread for each of the cores on which graphs run fastest together."""
    cores = max((round(cell.cores) for cell in model.cells), default=0)
    if model.board in profile_names():
        profile = load_profile(model.board)
        return facts_of_board(profile, [cpu for cluster in profile.clusters for cpu in cluster.cpus])
    return BoardFacts(big_cores=max(1, model.own_threads), cores=max(1, model.own_threads, cores))


def features_in(cell: Cell, model: ServedModel, board: BoardFacts) -> Features:
    """Features of a situation as the device would compute them there."""
    part = cast(TreePart, cell.part)
    heats: dict[float, Heat] = {level: heat for heat, level in HEAT_LEVEL.items()}
    at = Situation(
        tokens=round(cell.tokens),
        rows=round(cell.rows),
        cores=round(cell.cores) or board.cores,
        clock_share=cell.clock_share,
        heat=heats[float(round(cell.heat_level))],
    )
    return features_of(part, at, board, ModelWork(weight_bytes=model.weight_bytes))


def tried_as(leaf: Leaf, cell: Cell, model: ServedModel, board: BoardFacts) -> int | None:
    """Which of what was tried is what that leaf says there; None: it was not tried."""
    advice = Advice(threads_share=leaf.threads_share, of=leaf.of, chunk=leaf.chunk, saving_memory=False, reason="")
    cores = round(cell.cores)
    threads = min(advice.threads(board), cores) if cores else advice.threads(board)
    chunk = (leaf.chunk or model.own_chunk) if cell.part == "prefill" else 0

    def is_meant(choice: Choice) -> bool:
        session = choice.session
        return (
            session is not None and session.threads == threads and (cell.part != "prefill" or choice.chunk == chunk)
        )

    meant = [index for index, tried in enumerate(cell.tried) if is_meant(tried.choice)]
    # A rule says nothing of graphs and CPUs: as the default has them, else as most tasks had them.
    if cell.default in meant:
        return cell.default
    plain = [index for index in meant if _is_plain(cell.tried[index].choice, model)]
    return max(plain or meant, key=lambda index: cell.tried[index].total()[OK], default=None)


def rules_for(part: TreePart, models: Sequence[ServedModel]) -> tuple[Leaf, ...]:
    """Everything that a leaf may say: shares of big cores, or all cores; for prompts in each of the pieces that were
    tried on any board."""
    chunks = {0}
    if part == "prefill":
        chunks |= {tried.choice.chunk for model in models for cell in model.cells for tried in cell.tried}
    threads = [Leaf(threads_share=share) for share in SHARES] + [Leaf(of="all")]
    return tuple(
        msgspec.structs.replace(leaf, chunk=chunk) for chunk, leaf in itertools.product(sorted(chunks), threads)
    )


def grow(models: Sequence[ServedModel], rules: TrainingRules) -> Tree | None:
    """A tree over all situations of these models in which something was compared; None: there are none for any part,
    or no part has a rule that is better than all big cores."""
    parts: dict[TreePart, Node] = {}
    for part in TREE_PARTS:
        leaves = rules_for(part, models)
        examples = [example for model in models for example in examples_of(model, part, leaves, rules)]
        if examples:
            parts[part] = grown(part, leaves, examples, rules.seed)
    if not parts:
        return None
    boards = sorted({model.board for model in models})
    return Tree(
        name=f"trained on {len(boards)} board{'' if len(boards) == 1 else 's'}",
        decode=parts.get("decode", Leaf()),
        prefill=parts.get("prefill", Leaf()),
        encode=parts.get("encode", Leaf()),
    )


def examples_of(model: ServedModel, part: TreePart, leaves: Sequence[Leaf], rules: TrainingRules) -> list[Example]:
    """Situations of a part in which the default and something else were tried."""
    board = facts_of(model)
    cells = [cell for cell in model.cells if cell.part == part]
    sums = totals(cells)
    picks = pick(cells, sums, rules)
    found = []
    for index, picked in picks.items():
        cell = cells[index]
        assert cell.default is not None
        default = log_cost(sums[index][cell.default], rules.failure_price)
        costs = np.full(len(leaves), np.nan)
        for position, leaf in enumerate(leaves):
            tried = tried_as(leaf, cell, model, board)
            if tried is None or sums[index][tried][OK] < LEAST_TASKS or tried in picked.rejected:
                continue
            costs[position] = float(log_cost(sums[index][tried], rules.failure_price) - default)
        if np.isfinite(costs).any():
            tasks = sum(of[OK] + of[FAILED] for of in sums[index])
            found.append(
                Example(part=part, features=features_in(cell, model, board), log_costs=costs, weight=float(tasks))
            )
    total = sum(example.weight for example in found)
    return [msgspec.structs.replace(example, weight=example.weight / total) for example in found]


def _is_plain(choice: Choice, model: ServedModel) -> bool:
    session = choice.session
    return session is not None and not session.cpus and session.graph_file in ("", model.own_graph)


def grown(part: TreePart, leaves: Sequence[Leaf], examples: Sequence[Example], seed: int) -> Node:
    """The tree for one part by its examples, of which there must be one. Each leaf is one of `leaves`."""
    from sklearn.tree import DecisionTreeClassifier

    names = _BY_PART[part]
    points = np.array([[_number(example.features, name) for name in names] for example in examples])
    rows, labels, weights = [], [], []
    for index, example in enumerate(examples):
        best = float(np.nanmin(example.log_costs))
        good = np.flatnonzero(example.log_costs <= best + ALIKE)
        # A situation in which all rules are alike must not be learned from.
        at_stake = float(np.nanmean(example.log_costs)) - best
        for rule in good:
            rows.append(points[index])
            labels.append(int(rule))
            weights.append(example.weight * (at_stake + 1e-6) / len(good))
    classifier = DecisionTreeClassifier(
        max_leaf_nodes=MOST_LEAVES, max_depth=DEEPEST, min_samples_leaf=LEAST_EXAMPLES, random_state=seed
    )
    # A feature that no board has told would be "missing" everywhere, which is nothing to compare by.
    told = [column for column in range(len(names)) if np.isfinite(points[:, column]).any()]
    classifier.fit(np.array(rows)[:, told], labels, sample_weight=weights)
    known = points[:, told]
    in_leaf: dict[int, list[Example]] = defaultdict(list)
    for example, leaf in zip(examples, classifier.apply(known), strict=True):
        in_leaf[int(leaf)].append(example)
    return _Export(classifier.tree_, [names[column] for column in told], known, leaves, in_leaf).node(0)[0]


class _Export:
    """A grown tree as ours. Leaves say what is cheapest over their examples, and two neighbours that say the same
    are one."""

    def __init__(
        self,
        grown: Any,
        names: Sequence[Feature],
        points: Floats,
        leaves: Sequence[Leaf],
        in_leaf: Mapping[int, list[Example]],
    ) -> None:
        self._grown = grown
        self._names = names
        self._points = points
        self._leaves = leaves
        self._in_leaf = in_leaf

    def node(self, at: int) -> tuple[Node, list[Example]]:
        """The tree below a node, and the examples that lead there."""
        if self._grown.children_left[at] < 0:
            return _leaf(self._leaves, self._in_leaf[at]), self._in_leaf[at]
        then, below = self.node(int(self._grown.children_left[at]))
        otherwise, above = self.node(int(self._grown.children_right[at]))
        if isinstance(then, Leaf) and isinstance(otherwise, Leaf) and _same_rule(then, otherwise):
            return _leaf(self._leaves, below + above), below + above
        column = int(self._grown.feature[at])
        split = Split(
            feature=self._names[column],
            below=_readable(float(self._grown.threshold[at]), self._points[:, column]),
            then=then,
            otherwise=otherwise,
            unknown="then" if self._grown.missing_go_to_left[at] else "otherwise",
        )
        return split, below + above


def _same_rule(one: Leaf, other: Leaf) -> bool:
    return (one.threads_share, one.of, one.chunk) == (other.threads_share, other.of, other.chunk)


def _leaf(leaves: Sequence[Leaf], examples: Sequence[Example]) -> Leaf:
    costs = np.array([np.nan_to_num(example.log_costs, nan=UNTRIED) for example in examples])
    weights = np.array([example.weight for example in examples])
    mean = weights @ costs / weights.sum()
    # On boards of two big cores a quarter and a half of them are the same: the rule nearer to the default is meant.
    best = min(
        range(len(leaves)),
        key=lambda rule: (round(float(mean[rule]), 6), leaves[rule].chunk, -leaves[rule].threads_share),
    )
    # What saves next to nothing is not worth another session: all big cores, pieces as configured.
    default = leaves.index(Leaf())
    if mean[default] <= mean[best] + ALIKE:
        best = default
    tried = sum(bool(np.isfinite(example.log_costs[best])) for example in examples)
    uses = [example.features.bandwidth_use for example in examples if example.features.bandwidth_use is not None]
    saved = f"saves {1.0 - math.exp(float(mean[best])):.0%}" if mean[best] < -ALIKE else "nothing saves more"
    return msgspec.structs.replace(
        leaves[best],
        saving_memory=bool(uses) and float(np.mean(uses)) >= BANDWIDTH_THRESHOLD,
        reason=f"{saved}, tried in {tried} of {len(examples)} situations",
    )


def _readable(threshold: float, values: Floats) -> float:
    """The limit with three digits, where that parts the same values; the next number above it otherwise, because
    scikit-learn's left side includes the limit itself."""
    left = values <= threshold
    for digits in (2, 3, 4):
        rounded = float(f"{threshold:.{digits}g}")
        if np.array_equal((values < rounded)[np.isfinite(values)], left[np.isfinite(values)]):
            return rounded
    return math.nextafter(threshold, math.inf)


def _number(features: Features, name: Feature) -> float:
    value: float | None = getattr(features, name)
    return math.nan if value is None else float(value)
