"""What might run a part better than what runs it now: choices that differ in one thing, the most promising first.

Threads come before fusion plans and pieces: they change the most, and the best plan depends on them, not the other
way round.
"""

from __future__ import annotations

import msgspec

from magnitude.engine.session_spec import SessionSpec
from magnitude.policy.learned import Choice
from magnitude.policy.rules import ModelFacts
from magnitude.policy.situation import Part
from magnitude.policy.terms import BoardSeen

# Factors on a prompt's piece that are tried: a smaller one lets others in sooner at the price of more runs, and what
# a larger one gains is little beyond 256 tokens.
CHUNK_FACTORS = (0.5, 2.0)
LEAST_CHUNK, MOST_CHUNK = 32, 512


def big_cores(board: BoardSeen) -> int:
    """Cores of the fastest kind that may be used at once."""
    return max(1, min(board.usable, board.big or len(board.cores) or board.usable))


def session_on(board: BoardSeen, threads: int, own: SessionSpec) -> SessionSpec:
    """A session like `own` with so many threads, on the fastest cores where cores differ; `own` itself where it has
    that many and cores do not differ."""
    mixed = 0 < board.big < len(board.cores)
    cpus = board.cores[:threads] if mixed and threads < len(board.cores) else ()
    if not mixed and threads == own.threads:
        return own
    return msgspec.structs.replace(own, threads=threads, cpus=tuple(sorted(cpus)))


def thread_counts(board: BoardSeen) -> list[int]:
    """Numbers of threads worth trying: all of them on a small board, else 1, 2, half of the fast cores,
    all fast cores but one, all fast ones, and all."""
    usable = max(1, board.usable)
    big = min(usable, big_cores(board))
    counts = set(range(1, usable + 1)) if usable <= 4 else {1, 2, big // 2, big - 1, big, usable}
    return sorted(count for count in counts if count >= 1)


def default_choice(part: Part, facts: ModelFacts, board: BoardSeen) -> Choice:
    """What holds until something is measured: the model's own session, with no more threads than may run."""
    if part == "variant":
        return Choice()
    threads = min(facts.own.threads, max(1, board.usable))
    session = facts.own if threads == facts.own.threads else session_on(board, threads, facts.own)
    return Choice(session=session, chunk=facts.chunk if part == "prefill" else 0)


def challengers(
    part: Part, incumbent: Choice, facts: ModelFacts, board: BoardSeen, *, first: tuple[int, ...] = ()
) -> list[Choice]:
    """Choices that differ from `incumbent` in threads, then in the graph, then in the piece. Thread counts in `first`
    (a wish of the thermal governor, a tree's advice) come first, then those near the incumbent's."""
    session = incumbent.session
    if session is None:
        return []
    counts = thread_counts(board)
    order = [count for count in first if count in counts]
    order += sorted(counts, key=lambda count: (abs(count - session.threads), count))
    found = []
    for count in dict.fromkeys(order):
        other = session_on(board, count, msgspec.structs.replace(session, cpus=()))
        if count == facts.own.threads and not session.graph_file and not other.cpus:
            other = facts.own
        found.append(msgspec.structs.replace(incumbent, session=other))
    for graph in ("", *facts.graphs):
        found.append(msgspec.structs.replace(incumbent, session=msgspec.structs.replace(session, graph_file=graph)))
    if part == "prefill" and incumbent.chunk:
        for factor in CHUNK_FACTORS:
            chunk = int(incumbent.chunk * factor)
            if LEAST_CHUNK <= chunk <= MOST_CHUNK:
                found.append(msgspec.structs.replace(incumbent, chunk=chunk))
    return [choice for choice in dict.fromkeys(found) if choice != incumbent]
