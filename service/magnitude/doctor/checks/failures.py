"""Has anything gone wrong lately: engines lost, tasks failed, files set aside?"""

from __future__ import annotations

from collections import Counter

from magnitude.board.boot import Stamp, age_s, read_boot_id
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding
from magnitude.errors import MagnitudeError
from magnitude.feedback import record_table
from magnitude.feedback.bundles import FOLDER, BundleRefused, read_all
from magnitude.feedback.record_file import reading
from magnitude.feedback.recorder import RECORDS_FILE

LATELY_S = 86400.0
# More failures than these are counted as so many: they are enough to see that there is something.
MOST_ROWS = 1000


def check(context: DoctorContext) -> Finding:
    state = context.paths.state
    now = Stamp(wall_s=context.wall_clock(), at_s=context.monotonic(), boot_id=read_boot_id(context.roots))
    try:
        lost = _lost(context, now)
        failed = _failed(context, now)
        aside = sorted(path.name for path in state.glob("*.broken-*"))
    except (OSError, MagnitudeError) as error:
        return Finding(
            level="notice",
            title="What went wrong lately cannot be read",
            detail=error.message if isinstance(error, MagnitudeError) else str(error),
            advice="Ask as the service's user, or with sudo",
        )
    detail = [f"engines lost: {_listed(lost)}"] if lost else []
    detail += [f"tasks that failed: {_listed(failed)}"] if failed else []
    detail += [f"set aside, because it could not be read: {name}" for name in aside]
    if lost:
        return Finding(
            level="warning",
            title=f"{lost.total()} engine{'s were' if lost.total() > 1 else ' was'} lost within a day",
            detail="\n".join(detail),
            advice="`magnitude failures` shows each, `magnitude replay` tries it again",
        )
    if failed or aside:
        return Finding(
            level="notice",
            title="Something went wrong lately",
            detail="\n".join(detail),
            advice="`magnitude records --failures` shows the tasks" if failed else "",
        )
    return Finding(level="ok", title="Nothing went wrong within a day, as far as is on record")


def _lost(context: DoctorContext, now: Stamp) -> Counter[str]:
    counted = Counter[str]()
    for bundle in read_all(context.paths.state / FOLDER):
        if not isinstance(bundle, BundleRefused) and _lately(bundle.stamp, now):
            counted[bundle.loss.cause] += 1
    return counted


def _failed(context: DoctorContext, now: Stamp) -> Counter[str]:
    path = context.paths.state / RECORDS_FILE
    if not path.exists():
        return Counter()
    with reading(path) as connection:
        rows = record_table.failures(connection, MOST_ROWS)
    return Counter(row.task.outcome for row in rows if _lately(row.stamp, now))


def _lately(then: Stamp, now: Stamp) -> bool:
    age = age_s(then, now)
    return age is not None and age <= LATELY_S


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counted.most_common())
