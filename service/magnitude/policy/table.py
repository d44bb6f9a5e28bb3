"""The table of a model: a contest for each part in each kind of situation that was met, and what is in the dump."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from magnitude.policy.candidates import default_choice
from magnitude.policy.contest import REVERTED_FOR, Contest
from magnitude.policy.learned import Choice, Entry, Rejected
from magnitude.policy.rules import ModelFacts, Rules
from magnitude.policy.situation import Part, wider
from magnitude.policy.terms import BoardSeen

Usable = Callable[[Choice], bool]

# Contests that are kept: parts times buckets of rows or tokens, times the clocks and cores that a board goes through.
MOST_CONTESTS = 256
# A contest that was observed for less than this has nothing worth keeping.
LEAST_BUSY_S = 0.1


class Table:
    """Looks up, and begins contests as situations come up."""

    def __init__(self, facts: ModelFacts, rules: Rules) -> None:
        self._facts = facts
        self._rules = rules
        self._contests: dict[tuple[Part, str], Contest] = {}
        self._known: dict[tuple[Part, str], Entry] = {}
        self._rejected: dict[tuple[Part, str], list[Rejected]] = {}

    def restore(self, entries: Iterable[Entry], rejected: Iterable[Rejected]) -> None:
        """Take over what was known before; contests that are open already stay as they are."""
        self._known = {(entry.part, entry.key): entry for entry in entries}
        self._rejected = {}
        for one in rejected:
            self._rejected.setdefault((one.part, one.key), []).append(one)

    def __iter__(self) -> Iterator[Contest]:
        return iter(self._contests.values())

    def get(self, part: Part, key: str) -> Contest | None:
        return self._contests.get((part, key))

    def contest(
        self,
        part: Part,
        key: str,
        board: BoardSeen,
        now_s: float,
        *,
        usable: Usable,
        advised: Callable[[], Choice | None],
    ) -> Contest:
        """That of the situation. A new one begins with what the table knew of it, else with what was measured nearby,
        else with what a tree advises, else with the default; and as long as it has decided nothing itself it follows
        them."""
        known = self._contests.get((part, key))
        if known is not None:
            if not known.decided:
                known.chosen = self._first_choice(part, key, board, usable, advised)
            return known
        while len(self._contests) >= MOST_CONTESTS:
            least = min(self._contests, key=lambda at: self._contests[at].busy.weight(now_s))
            gone = self._contests.pop(least)
            if gone.decided:
                self._known[least] = gone.entry(now_s)
        contest = Contest(part, key, self._first_choice(part, key, board, usable, advised), self._rules, now_s)
        entry = self._known.get((part, key))
        if entry is not None and usable(entry.chosen):
            contest.restore(entry, now_s, self._rules)
        for one in (*self._rejected.get((part, key), ()), *self._rejected.get((part, ""), ())):
            contest.reject(one.choice, one.reason, now_s, half_lives=REVERTED_FOR)
        self._contests[part, key] = contest
        return contest

    def forget(self, part: Part, key: str) -> None:
        """Begin that contest anew when its situation comes up: what it chose cannot be had any more."""
        self._contests.pop((part, key), None)

    def entries(self, now_s: float) -> tuple[Entry, ...]:
        """What is to be dumped: what was met in this run, and what is known from before and was not met."""
        found = dict(self._known)
        for at, contest in self._contests.items():
            looked_up = contest.busy.weight(now_s) < LEAST_BUSY_S and contest.since_s <= contest.begun_s
            # What is known and cannot be had at the moment outlasts the default that stands in for it.
            if (at in found and not contest.decided) or (at not in found and looked_up):
                continue
            found[at] = contest.entry(now_s)
        return tuple(found[at] for at in sorted(found))

    def rejected(self, now_s: float) -> tuple[Rejected, ...]:
        found = {(part, key, one.choice): one for (part, key), many in self._rejected.items() for one in many}
        for contest in self._contests.values():
            for choice, reason in contest.rejections(now_s):
                one = Rejected(part=contest.part, key=contest.key, choice=choice, reason=reason)
                found[contest.part, contest.key, choice] = one
        return tuple(found.values())

    def _first_choice(
        self, part: Part, key: str, board: BoardSeen, usable: Usable, advised: Callable[[], Choice | None]
    ) -> Choice:
        for near in wider(key):
            contest, entry = self._contests.get((part, near)), self._known.get((part, near))
            if contest is not None and contest.decided and usable(contest.chosen):
                return contest.chosen
            if entry is not None and usable(entry.chosen):
                return entry.chosen
        return advised() or default_choice(part, self._facts, board)


def fits(choice: Choice, board: BoardSeen) -> bool:
    """Whether the board has what the choice needs, now."""
    session = choice.session
    if session is None:
        return True
    return session.threads <= max(1, board.usable) and set(session.cpus) <= set(board.cores)
