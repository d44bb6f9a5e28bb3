"""Fair shares of compute between clients, by tokens of work.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) with one account a client: the account grows by the work of
each request that starts, and the client with the lowest account goes first. Who comes after a time without requests
begins where the account of the client that is furthest behind stood when that one last started a request: idleness
earns nothing, and costs nothing.
"""

from __future__ import annotations

# Work of a prompt token, in new tokens. Measured on the embedded model: a prefill chunk of 128 tokens took as long
# as nine decode steps (183 and 20 ms), 1/14 for a lone stream; in a batch of four, where a step serves four, 1/6.
# An eighth lies between.
PREFILL_WORK = 0.125

# Accounts of absent clients that are kept at most. A client is an API key, of which a board has a handful.
REMEMBERED_CLIENTS = 1024


def work_tokens(prompt_tokens: int, new_tokens: int) -> float:
    """The work of a request; at least one token, so that every request moves its client's account."""
    return max(1.0, PREFILL_WORK * prompt_tokens + new_tokens)


class FairShare:
    """The accounts of one pool's clients. A client is present from `enter` to the `leave` of its last request."""

    def __init__(self) -> None:
        self._work: dict[str, float] = {}
        self._at_start: dict[str, float] = {}  # of those present: their account before their last start
        self._present: dict[str, int] = {}

    def enter(self, client: str) -> None:
        if client not in self._present:
            if not self._present:
                self._work.clear()  # nobody competed, so the past does not matter
            self._work[client] = max(self._work.get(client, 0.0), self._floor())
        self._present[client] = self._present.get(client, 0) + 1

    def leave(self, client: str) -> None:
        self._present[client] -= 1
        if self._present[client]:
            return
        del self._present[client]
        self._at_start.pop(client, None)
        floor = self._floor()
        absent = sorted((work, name) for name, work in self._work.items() if name not in self._present)
        for index, (work, name) in enumerate(absent):
            if work <= floor or len(absent) - index > REMEMBERED_CLIENTS:
                del self._work[name]

    def start(self, client: str, work: float) -> None:
        """A request of that much work, by estimate, starts."""
        self._at_start[client] = self._work[client]
        self._work[client] += work

    def correct(self, client: str, by: float) -> None:
        """The work of a request turned out to be that much more, or less, than estimated."""
        self._work[client] += by

    def work(self, client: str) -> float:
        """The client's account. Only differences between accounts mean anything."""
        return self._work.get(client, 0.0)

    def _floor(self) -> float:
        return min((self._at_start.get(name, self._work[name]) for name in self._present), default=0.0)
