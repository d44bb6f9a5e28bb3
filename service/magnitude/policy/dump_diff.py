"""What changed from one dump to another. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from magnitude.policy.drift import changes
from magnitude.policy.learned import Entry, Learned, Rejected

# Costs of one choice that differ by less have not changed: step times scatter by some per cent on a busy board.
WORTH_TELLING = 0.05

Change = Literal["new", "gone", "other choice", "cost", "rejected", "not rejected any more"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One situation in which the two differ. Costs are of what is chosen, in seconds a unit of work; None: not known
    or not there."""

    part: str
    key: str
    change: Change
    before: str = ""
    after: str = ""
    before_s: float | None = None
    after_s: float | None = None
    reason: str = ""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    binding: tuple[str, ...]
    differences: tuple[Difference, ...]
    same: int  # situations in which both choose the same at about the same cost


def diff(before: Learned, after: Learned) -> Diff:
    """Choices and costs that differ, by part and situation."""
    old = {(entry.part, entry.key): entry for entry in before.entries}
    new = {(entry.part, entry.key): entry for entry in after.entries}
    found: list[Difference] = []
    same = 0
    for at in sorted({*old, *new}):
        difference = _between(old.get(at), new.get(at))
        if difference is None:
            same += 1
        else:
            found.append(difference)
    earlier, later = set(before.rejected), set(after.rejected)
    found += [_rejected(one, "rejected") for one in after.rejected if not _among(one, earlier)]
    found += [_rejected(one, "not rejected any more") for one in before.rejected if not _among(one, later)]
    return Diff(binding=changes(before.binding, after.binding), differences=tuple(found), same=same)


def _between(old: Entry | None, new: Entry | None) -> Difference | None:
    shown = new or old
    assert shown is not None
    before_s, after_s = _chosen_s(old), _chosen_s(new)
    change: Change
    if old is None:
        change = "new"
    elif new is None:
        change = "gone"
    elif old.chosen != new.chosen:
        change = "other choice"
    elif before_s is not None and after_s is not None and _far(before_s, after_s):
        change = "cost"
    else:
        return None
    return Difference(
        part=shown.part,
        key=shown.key,
        change=change,
        before=old.chosen.choice_id if old else "",
        after=new.chosen.choice_id if new else "",
        before_s=before_s,
        after_s=after_s,
    )


def _chosen_s(entry: Entry | None) -> float | None:
    known = entry.evidence_of(entry.chosen) if entry is not None else None
    return known.cost_s if known is not None else None


def _far(before_s: float, after_s: float) -> bool:
    return abs(after_s - before_s) > WORTH_TELLING * min(abs(before_s), abs(after_s))


def _among(one: Rejected, others: set[Rejected]) -> bool:
    """The reason holds figures, which differ each time."""
    return any((one.part, one.key, one.choice) == (each.part, each.key, each.choice) for each in others)


def _rejected(one: Rejected, change: Change) -> Difference:
    return Difference(part=one.part, key=one.key, change=change, after=one.choice.choice_id, reason=one.reason)
