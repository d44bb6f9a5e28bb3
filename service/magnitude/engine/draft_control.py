"""How many tokens to draft ahead: as many as pay, by what drafting has brought so far and what runs cost.

A verification run of k drafted tokens computes k+1 positions and gives between 1 and k+1 tokens. Whether that beats
the plain step depends on the machine (a run of 5 positions cost 1.8 plain steps on two x86 cores, far less where
memory is the limit) and on the text, so both are measured. Two rules decide:

- the estimate: acceptance by length of the match, for the first drafted token and for those behind an accepted one;
  with it the expected tokens of a run (Leviathan et al. 2023, "Fast inference from transformers via speculative
  decoding", section 3.1), and the length that gives the most tokens a second;
- the account, in tokens of plain decoding: plain steps earn it a hundredth, drafts pay in what they gained and draw
  what they lost. No draft may risk more than there is, so even text that deceives the estimate at every step costs no
  more than that hundredth, a start and one run.

Pure: times come from the caller.
"""

from __future__ import annotations

from magnitude.engine.session_spec import SessionSpec

# Weight of a new time in a running mean: follows a growing context and a changing clock within tens of steps. Shorter
# times count more, since what lengthens a run (other processes, its first time) says nothing about the next one.
_TIME_WEIGHT = 0.1
_SHORTER_WEIGHT = 0.3
# Weight at each plain step of what a verification is expected to take: one disturbed time has lost half its weight
# after seventy steps.
_FORGETTING = 0.01
# A run that another process held up counts as this much of the mean at most.
_MAX_OUTLIER = 2.0
# Cost of each further position in plain steps until it is measured: 0.2 on two x86 cores (13.7, 15.7, 18.3 ms for 2,
# 3, 4 positions where one took 11.3), and less on machines whose memory is slow beside their arithmetic.
_POSITION_COST = 0.2

# Share of plain decoding that drafting may lose. Free text shall stay above 0.97 of plain decoding; the rest of these
# three percent is for the start, which weighs more in short answers.
_LOSS_SHARE = 0.01
# The account at the start and at most, in tokens of plain decoding. A half lets a generation try its likelier drafts
# at once; with a whole one quotes were no faster, and short free answers lost another hundredth.
_FIRST_CREDIT_TOKENS = 0.5
_MOST_CREDIT_TOKENS = 8.0

# Strengths of a draft made by a model and of one that a grammar forces; all others are lengths of a match.
BY_MODEL = 0
FORCED = 100
# By strength, from this one on: acceptance of the first drafted token, and of one behind an accepted one, before
# anything is known of this text. About what free answers of a 135M model gave at temperatures 0 and 0.7; quotes lie
# higher (0.6, 0.9 for matches of two tokens) and show it with their first drafts.
_CLASSES = (
    (BY_MODEL, 0.7, 0.7),
    (2, 0.45, 0.6),
    (3, 0.55, 0.65),
    (4, 0.6, 0.75),
    (6, 0.75, 0.85),
    (9, 0.85, 0.92),
    (16, 0.95, 0.95),
    (FORCED, 0.95, 0.95),
)
# The prior counts as so many drafts. Few: whether a text repeats itself is its own matter and shows at once.
_PRIOR_WEIGHT = 2.0
# Weight of the past at each new outcome: about the last twenty drafts count.
_MEMORY = 0.95
# Chances passed by before a class that does not pay is tried again, doubled at each failure up to the last.
_FIRST_PAUSE, _LONGEST_PAUSE = 4, 64


class DraftCosts:
    """Running means of what the graph runs of one model take, filled by the running batch.

    `step_s(rows)`: a plain decode step of so many generations; `verify_s(positions)`: a run of so many positions of
    one generation with logits at each. What was not measured yet is taken from its neighbours. Each session has
    means of its own.
    """

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}
        self._verifies: dict[int, float] = {}
        self._session: SessionSpec | None = None
        self._others: dict[SessionSpec | None, tuple[dict[int, float], dict[int, float]]] = {}

    def run_by(self, session: SessionSpec | None) -> None:
        """From now on all means are of that session (None: the model's own). Those of a new one begin as they
        are."""
        if session == self._session:
            return
        self._others[self._session] = self._steps, self._verifies
        self._session = session
        self._steps, self._verifies = self._others.pop(session, (dict(self._steps), dict(self._verifies)))

    def forget(self, session: SessionSpec) -> None:
        """Drop the means of a session that is no more, which are not those in use."""
        self._others.pop(session, None)

    @property
    def known(self) -> bool:
        """Whether any plain step was measured; nothing can be compared before."""
        return bool(self._steps)

    def observe_step(self, rows: int, seconds: float) -> None:
        _update(self._steps, rows, seconds)
        # Means that keep a length from being tried are not measured again: they are slowly forgotten instead.
        for positions, mean in self._verifies.items():
            self._verifies[positions] = mean + _FORGETTING * (self._expected_s(positions) - mean)

    def observe_verify(self, positions: int, seconds: float) -> None:
        if self.known:  # the first time may be a disturbed one, so it starts from what is expected of it
            self._verifies.setdefault(positions, self._expected_s(positions))
        _update(self._verifies, positions, seconds)

    def _expected_s(self, positions: int) -> float:
        return self.step_s(1) * (1 + _POSITION_COST * (positions - 1))

    def step_s(self, rows: int) -> float:
        """Raises `KeyError` unless `known`."""
        # Batch steps grow by about half a single step a row (14.2, 20.6, 30.7 ms for 2, 4, 8 rows against 11.3).
        return _between(self._steps, rows, 0.25)

    def verify_s(self, positions: int) -> float:
        """Raises `KeyError` unless `known`."""
        return _between(self._verifies | {1: self.step_s(1)}, positions, _POSITION_COST)


def _update(means: dict[int, float], key: int, value: float) -> None:
    mean = means.get(key)
    if mean is None:
        means[key] = value
    else:
        weight = _SHORTER_WEIGHT if value < mean else _TIME_WEIGHT
        means[key] = mean + weight * (min(value, _MAX_OUTLIER * mean) - mean)


def _between(means: dict[int, float], key: int, slope: float) -> float:
    """The value at `key`: known, between its neighbours, or going on from the nearest by `slope` of a single one."""
    if key in means:
        return means[key]
    below = max((k for k in means if k < key), default=None)
    above = min((k for k in means if k > key), default=None)
    if below is not None and above is not None:
        return means[below] + (means[above] - means[below]) * (key - below) / (above - below)
    nearest = below if below is not None else above
    if nearest is None:
        raise KeyError("no step was measured")
    single = means[nearest] / (1 + slope * (nearest - 1))
    return single * (1 + slope * (key - 1))


class _Rate:
    """An acceptance rate: recent outcomes weigh more, the prior weighs like a few of them."""

    def __init__(self, prior: float) -> None:
        self._hits = prior * _PRIOR_WEIGHT
        self._trials = _PRIOR_WEIGHT

    def observe(self, hits: int, trials: int) -> None:
        self._hits = self._hits * _MEMORY + hits
        self._trials = self._trials * _MEMORY + trials

    @property
    def value(self) -> float:
        return self._hits / self._trials


class _Class:
    """What is known of drafts of one strength."""

    def __init__(self, first_prior: float, later_prior: float) -> None:
        self.first = _Rate(first_prior)
        self.later = _Rate(later_prior)
        self.pause = _FIRST_PAUSE
        self.chances = 0  # passed by since the last draft

    def observe(self, drafted: int, accepted: int) -> None:
        self.first.observe(min(accepted, 1), 1)
        if accepted and drafted > 1:
            # Each accepted token is followed by one more outcome, unless the draft ended there.
            self.later.observe(accepted - 1, min(accepted, drafted - 1))
        self.chances = 0
        self.pause = _FIRST_PAUSE if accepted else min(2 * self.pause, _LONGEST_PAUSE)

    def expected_tokens(self, drafted: int) -> float:
        """Tokens that a verification of `drafted` tokens gives on average, the sampled one included."""
        later = min(self.later.value, 0.999)
        return 1.0 + self.first.value * (1.0 - later**drafted) / (1.0 - later)


class DraftControl:
    """Decides for one generation. `costs` is shared with the others of its model.

    Before a draft, ask `length`; after a step, tell `plain_step` or `verified`. `rows` is always the number of
    generations that decode, this one included. With several, a verification is a run beside the step of all, in which
    this generation takes part as well: it pays when its tokens come faster than those of the batch.
    """

    def __init__(self, costs: DraftCosts) -> None:
        self._costs = costs
        self._classes = [_Class(first, later) for _, first, later in _CLASSES]
        self._credit_tokens = _FIRST_CREDIT_TOKENS

    def length(self, strength: int, most: int, rows: int, draft_s: float = 0.0) -> int:
        """How many of at most `most` tokens to draft; 0: plain steps are better.

        `strength`: tokens of the match, `BY_MODEL` or `FORCED`. `draft_s`: what drafting one token takes.
        """
        if most < 1 or not self._costs.known:
            return 0
        of_class = self._class(strength)
        step_s = self._costs.step_s(rows)
        # Alone, a verification takes the place of the step; otherwise it comes on top.
        beside_tokens, beside_s = (rows, step_s) if rows > 1 else (0, 0.0)
        best, best_rate = 0, rows / step_s
        trial = 0  # the shortest draft that would pay if all of it stood
        for drafted in range(1, most + 1):
            run_s = self._costs.verify_s(drafted + 1) + drafted * draft_s
            run_tokens = run_s * rows / step_s  # what plain steps give in that time
            # What is likely lost: the more certain the draft, the more may be ventured on it.
            if (run_tokens - 1.0) * (1.0 - of_class.first.value) > self._credit_tokens:
                break
            if trial == 0 and 1 + drafted > run_tokens:
                trial = drafted
            rate = (beside_tokens + of_class.expected_tokens(drafted)) / (beside_s + run_s)
            if rate > best_rate:
                best, best_rate = drafted, rate
        if best or not trial:
            return best
        of_class.chances += 1
        return trial if of_class.chances > of_class.pause else 0

    def plain_step(self) -> None:
        """A step without a draft: a part of its time may be spent on drafts."""
        self._earn(_LOSS_SHARE)

    def verified(
        self, strength: int, drafted: int, accepted: int, rows: int, *, run_s: float, draft_s: float = 0.0
    ) -> None:
        """A run of `run_s` with `drafted` tokens was done, and `accepted` of them stood."""
        self._class(strength).observe(drafted, accepted)
        # The account pays what the run took, and not what was expected: that may be wrong.
        spent_s = min(run_s, _MAX_OUTLIER * self._costs.verify_s(drafted + 1)) + drafted * draft_s
        self._earn(1 + accepted - spent_s * rows / self._costs.step_s(rows))

    def _earn(self, tokens: float) -> None:
        self._credit_tokens = min(self._credit_tokens + tokens, _MOST_CREDIT_TOKENS)

    def _class(self, strength: int) -> _Class:
        found = self._classes[0]
        for (least, _, _), of_class in zip(_CLASSES, self._classes, strict=True):
            if strength >= least:
                found = of_class
        return found
