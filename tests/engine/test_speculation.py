"""Speculation gives what plain decoding gives: the same text for a seed, and so the same distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import EngineDriver, KvFile
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoder import EOS, byte_tokenizer, layout_of, write_decoder

from magnitude.engine.batch import RunningBatch
from magnitude.engine.draft_control import BY_MODEL, FORCED, DraftCosts
from magnitude.engine.draft_model import DraftModel
from magnitude.engine.generation import Generation, take_slot
from magnitude.engine.grammar import Grammar, GrammarTokenizer
from magnitude.engine.kv import KvMemory
from magnitude.engine.message import Message
from magnitude.engine.protocol import (
    Finished,
    Generate,
    GrammarSpec,
    Loaded,
    LoadModel,
    SamplerSettings,
    TokenLogprob,
    Tokens,
)
from magnitude.engine.sampling import F32, Sampler
from magnitude.engine.slot_header import trusted_length
from magnitude.engine.speculation import Draft, Speculation
from magnitude.engine.work import Work
from magnitude.models.description import ModelDescription

VOCAB = 300
MODEL_HASH = "ab" * 32


def markov_logits(seed: int, vocab: int, kept: int) -> F32:
    """Logits by the last token: rows of which only about `kept` tokens are likely."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((vocab, vocab)).astype(np.float32)
    for row in table:
        row[rng.permutation(vocab)[:kept]] += 6
    return table


TABLE = markov_logits(1, VOCAB, 3)


class FakeDecoder:
    """Logits by the last two tokens of what a row holds; equal to the bit however positions are grouped into runs.

    Keeps the ids of each slot as a KV cache would, junk behind rejected drafts included.
    """

    can_verify = True

    def __init__(self, rows: int = 4) -> None:
        self.prefill_row = rows
        self.runs: list[tuple[str, int]] = []  # kind and positions
        self._shown: dict[int, int] = {}
        self._slots: dict[int, list[int]] = {}

    def show(self, row: int, slot: int, adapter: str = "") -> None:
        self._shown[row] = slot

    def runs_by(self, spec: None, adapter: str = "") -> None:
        """It has one session."""

    def step(self, ids: Sequence[int], pasts: Sequence[int], first_row: int = 0, by: None = None) -> F32:
        self.runs.append(("step", len(ids)))
        return np.stack([self._put(first_row + at, [ids[at]], pasts[at])[0] for at in range(len(ids))])

    def extend(self, row: int, ids: Sequence[int], past: int, wanted: str = "last", by: None = None) -> F32:
        self.runs.append(("verify" if wanted == "all" else "piece", len(ids)))
        logits = self._put(row, ids, past)
        return logits if wanted == "all" else logits[-1:]

    def _put(self, row: int, ids: Sequence[int], past: int) -> F32:
        held = self._slots.setdefault(self._shown[row], [])
        assert past <= len(held), "a position before it was never computed"
        held[past:] = ids
        rows = [TABLE[held[at]] + TABLE[held[max(at - 1, 0)]][::-1] for at in range(past, len(held))]
        return np.stack(rows).astype(np.float32)


class Guesses(Speculation):
    """Drafts whatever `guess(text)` says, paying or not."""

    def __init__(self, guess: Callable[[list[int]], list[int]]) -> None:
        super().__init__(DraftCosts(), most=64)
        self._guess = guess

    def draft(self, ids: Sequence[int], room: int, rows: int, grammar: Grammar | None = None) -> Draft | None:
        guessed = self._guess(list(ids))[: max(room, 0)]
        return Draft(guessed, 16) if guessed else None

    def plain_step(self) -> None:
        pass

    def took(self, rows: int, run_s: float) -> None:
        pass


class FakeModel:
    def __init__(self, batch: RunningBatch, max_inter_token_s: float) -> None:
        self.batch = batch
        self.max_inter_token_s = max_inter_token_s


class Told:
    """What the messages of one generation say."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.end: Finished | None = None
        self.messages = 0

    def take(self, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case Tokens():
                    assert self.end is None, "tokens after the end"
                    assert message.ids
                    self.ids += message.ids
                    self.logprobs += message.logprobs
                    self.messages += 1
                case Finished():
                    self.end = message


class Bench:
    """Runs generations of the fake model through the real batch, planner, sampler and slot headers."""

    def __init__(self, model: ModelDescription, kv: KvMemory) -> None:
        self._model = model
        self._kv = kv
        self.decoder = FakeDecoder()
        self._grammars: GrammarTokenizer | None = None

    def run(self, *speculations: Speculation | None, limit_s: float = 1.0, **fields: Any) -> list[Told]:
        """One generation for each entry, side by side; returns what they said."""
        self.decoder = FakeDecoder()
        batch = RunningBatch(self.decoder, 4)  # type: ignore[arg-type]
        work = Work({"tiny": FakeModel(batch, limit_s)})  # type: ignore[dict-item]
        told = {}
        for slot, speculation in enumerate(speculations):
            told[slot] = Told()
            batch.join(self._open(slot, speculation, fields))
        turns = 0
        while len(work):
            turns += 1
            assert turns < 1000
            for run in work.turn():
                for request_id, result in run():
                    if isinstance(result, Exception):
                        raise result
                    told[request_id].take(result)
        for slot, one in told.items():
            self._check_header(slot, one.ids, fields)
        return list(told.values())

    def _open(self, slot: int, speculation: Speculation | None, fields: dict[str, Any]) -> Generation:
        defaults: dict[str, Any] = {"prompt": [5, 9, 5], "max_new_tokens": 30, "sampler": SamplerSettings()}
        request = Generate(request_id=slot, model="tiny", slot=slot, **(defaults | fields))
        grammar = None
        if request.grammar is not None:
            if self._grammars is None:
                text = (Path(self._model.folder) / "tokenizer.json").read_text()
                self._grammars = GrammarTokenizer(text, VOCAB, [EOS])
            grammar = self._grammars.start(request.grammar)
        return Generation(
            request,
            state=take_slot(request, self._kv, MODEL_HASH),
            max_len=self._kv.layout.max_len,
            sampler=Sampler(request.sampler, vocab_size=VOCAB, prompt=request.prompt, logprobs=request.logprobs),
            grammar=grammar,
            received_s=0.0,
            speculation=speculation,
        )

    def _check_header(self, slot: int, ids: list[int], fields: dict[str, Any]) -> None:
        text = [*fields.get("prompt", [5, 9, 5]), *ids]
        header = self._kv.read_header(slot)
        length = trusted_length(header, MODEL_HASH, self._kv.layout.layout_id, text)
        assert length >= len(text) - 1, "the header does not say what the slot holds"


@pytest.fixture(scope="module")
def bench(tiny: ModelDescription) -> Iterator[Bench]:
    file = KvFile(layout_of(tiny, slots=4))
    kv = KvMemory(file.fd, file.layout)
    yield Bench(tiny, kv)
    kv.close()
    file.close()


def partly_right(truth: list[int], wrong_at: Sequence[int], length: int) -> Callable[[list[int]], list[int]]:
    """Guesses the true text, with other tokens at some positions of it."""

    def guess(text: list[int]) -> list[int]:
        at = len(text) - 3
        return [(truth[i] + (i in wrong_at)) % VOCAB for i in range(at, min(at + length, len(truth)))]

    return guess


SETTINGS = {
    "greedy": {"sampler": SamplerSettings(temperature=0.0)},
    "sampled": {"sampler": SamplerSettings(temperature=1.0, seed=7)},
    "cut": {"sampler": SamplerSettings(temperature=0.9, top_p=0.8, top_k=20, min_p=0.02, seed=8), "logprobs": 2},
    "penalised": {
        "sampler": SamplerSettings(
            temperature=0.8, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.5, seed=9
        )
    },
    "constrained": {
        "sampler": SamplerSettings(temperature=1.0, seed=10),
        "grammar": GrammarSpec(kind="regex", text="([a-f]{3}-){6}"),
    },
    "stopped": {"sampler": SamplerSettings(temperature=1.0, seed=7), "stop_ids": tuple(range(0, 300, 17))},
}


@pytest.mark.parametrize("kind", SETTINGS)
@given(wrong_at=st.sets(st.integers(0, 40), max_size=12), length=st.integers(1, 9))
@settings(deadline=None, max_examples=25)
def test_the_text_is_that_of_plain_decoding_whatever_is_drafted(
    bench: Bench, kind: str, wrong_at: set[int], length: int
):
    fields = SETTINGS[kind]
    (plain,) = bench.run(None, **fields)
    guess = partly_right(plain.ids, sorted(wrong_at), length)
    speculation = Guesses(guess)
    (told,) = bench.run(speculation, **fields)
    assert told.ids == plain.ids
    assert told.logprobs == plain.logprobs
    assert told.end is not None
    assert plain.end is not None
    assert (told.end.reason, told.end.new_tokens) == (plain.end.reason, plain.end.new_tokens)
    assert (told.end.drafted_tokens, told.end.accepted_tokens) == (speculation.drafted, speculation.accepted)
    if not wrong_at:
        assert speculation.accepted == speculation.drafted


def test_right_drafts_take_fewer_runs_and_arrive_together(bench: Bench):
    fields = SETTINGS["sampled"]
    (plain,) = bench.run(None, **fields)
    plain_runs = len(bench.decoder.runs)
    (told,) = bench.run(Guesses(partly_right(plain.ids, [], 5)), **fields)
    assert plain_runs == 30
    assert len(bench.decoder.runs) == 6
    assert told.messages == 6


def test_beside_others_each_stream_keeps_its_own_text(bench: Bench):
    fields = SETTINGS["sampled"]
    (plain,) = bench.run(None, **fields)
    wrong = Guesses(partly_right(plain.ids, [4, 5, 11, 20], 4))
    right = Guesses(partly_right(plain.ids, [], 3))
    for told in bench.run(right, None, wrong, None, **fields):
        assert told.ids == plain.ids
    assert ("step", 4) in bench.decoder.runs
    assert any(kind == "verify" for kind, _ in bench.decoder.runs)


def test_no_verification_holds_up_other_streams_beyond_their_limit(bench: Bench):
    fields = SETTINGS["sampled"]
    (plain,) = bench.run(None, **fields)
    for told in bench.run(Guesses(partly_right(plain.ids, [], 3)), None, limit_s=0.0, **fields):
        assert told.ids == plain.ids
    kinds = [kind for kind, _ in bench.decoder.runs]
    both_decode = kinds[kinds.index("piece", kinds.index("piece") + 1) :]
    assert len(both_decode) > 20
    assert "verify" not in both_decode
    bench.run(Guesses(partly_right(plain.ids, [], 3)), limit_s=0.0, **fields)
    assert any(kind == "verify" for kind, _ in bench.decoder.runs)  # alone it holds up nobody


def test_a_draft_never_goes_beyond_the_slot_or_the_wished_length(bench: Bench):
    room = 96 - 3  # of a slot, behind the prompt
    always = Guesses(lambda text: [1] * 50)
    (told,) = bench.run(always, sampler=SamplerSettings(temperature=1.0), max_new_tokens=500)
    assert (len(told.ids), told.end and told.end.reason) == (room, "length")
    short = Guesses(lambda text: [1] * 50)
    (told,) = bench.run(short, sampler=SamplerSettings(temperature=1.0), max_new_tokens=2)
    assert len(told.ids) == 2
    assert short.drafted == 0  # the second token is the last one: nothing could follow a draft of it


def quantile(degrees: int, sigmas: float) -> float:
    """Chi-square quantile at so many standard deviations (Wilson and Hilferty 1931)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + sigmas * math.sqrt(part)) ** 3


@pytest.mark.parametrize("likely", [True, False], ids=["best-tokens", "rare-tokens"])
def test_over_many_seeds_tokens_have_the_models_own_distribution(bench: Bench, likely: bool):
    """Chi-square of the pair behind the first token, which a draft of two tokens guesses in every run."""
    seeds = 3000
    sampler = SamplerSettings(temperature=1.5, top_k=4, seed=0)

    def best(text: list[int], rank: int) -> int:
        logits = TABLE[text[-1]] + TABLE[text[-2]][::-1]
        return int(np.argsort(-logits, kind="stable")[rank])

    def guess(text: list[int]) -> list[int]:
        first = best(text, 0 if likely else 3)
        return [first, best([*text, first], 0 if likely else 3)]

    def top_four(text: list[int]) -> list[tuple[int, float]]:
        logits = (TABLE[text[-1]] + TABLE[text[-2]][::-1]).astype(np.float64)
        ids = np.argsort(-logits, kind="stable")[:4]
        weights = np.exp((logits[ids] - logits[ids[0]]) / 1.5)
        return [(int(token), float(p)) for token, p in zip(ids, weights / weights.sum(), strict=True)]

    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(seeds):
        speculation = Guesses(guess)
        drawn = SamplerSettings(temperature=sampler.temperature, top_k=sampler.top_k, seed=seed)
        (told,) = bench.run(speculation, sampler=drawn, max_new_tokens=4)
        counts[tuple(told.ids[:3])] += 1
        accepted += speculation.accepted > 0
    start = [5, 9, 5]
    chances = {
        (a, b, c): p * q * r
        for a, p in top_four(start)
        for b, q in top_four([*start, a])
        for c, r in top_four([*start, a, b])
    }
    assert set(counts) <= set(chances)
    # Cells with few expected counts are put together, as the test's approximation wants it.
    statistic, cells, rest_expected, rest_count = 0.0, 0, 0.0, 0
    for cell, chance in chances.items():
        expected = seeds * chance
        if expected < 5:
            rest_expected += expected
            rest_count += counts[cell]
            continue
        statistic += (counts[cell] - expected) ** 2 / expected
        cells += 1
    if rest_expected:
        statistic += (rest_count - rest_expected) ** 2 / rest_expected
        cells += 1
    assert cells > 5
    assert statistic < quantile(cells - 1, 3.1)  # one in a thousand correct samplers fails this
    assert 0 < accepted < seeds


def test_a_repeating_text_is_drafted_from_itself_as_soon_as_costs_are_known(bench: Bench):
    costs = DraftCosts()
    costs.observe_step(1, 0.010)
    speculation = Speculation(costs, 8)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 3
    draft = speculation.draft(text, 100, 1)
    assert draft is not None
    assert draft.ids == [1, 2, 3, 4, 5, 6, 7, 8][: len(draft.ids)]
    assert len(draft.ids) > 3
    short = speculation.draft(text, 2, 1)
    assert short is not None
    assert len(short.ids) == 2
    assert speculation.draft(text, 0, 1) is None
    assert Speculation(DraftCosts(), 8).draft(text, 100, 1) is None


def test_what_a_grammar_forces_is_drafted_and_what_it_forbids_is_not(tiny: ModelDescription):
    costs = DraftCosts()
    costs.observe_step(1, 0.010)
    tokenizer = GrammarTokenizer((Path(tiny.folder) / "tokenizer.json").read_text(), VOCAB, [EOS])

    def ids_of(text: str) -> list[int]:
        return byte_tokenizer().encode(text).ids

    forcing = tokenizer.start(GrammarSpec(kind="regex", text="yes, sir( and madam)?"))
    draft = Speculation(costs, 4).draft([1, 2, 3], 100, 1, forcing)
    assert draft is not None
    assert draft == Draft(ids_of("yes,"), FORCED)
    repeating = ids_of("abcdef. abcdef. abc")
    free = Speculation(costs, 8).draft(repeating, 100, 1)
    assert free is not None
    assert free.ids[:5] == ids_of("def. ")
    letters = tokenizer.start(GrammarSpec(kind="regex", text="[a-f]{1,20}"))
    bounded = Speculation(costs, 8).draft(repeating, 100, 1, letters)
    assert bounded is not None
    assert bounded.ids == ids_of("def")
    digits = tokenizer.start(GrammarSpec(kind="regex", text="[0-9]{1,20}"))
    assert Speculation(costs, 8).draft(repeating, 100, 1, digits) is None


class CountingDecoder:
    """A draft model for which the next token is one higher."""

    def step(self, ids: Sequence[int], pasts: Sequence[int], first_row: int = 0) -> F32:
        return self.extend(first_row, ids, pasts[0])

    def extend(self, row: int, ids: Sequence[int], past: int) -> F32:
        logits = np.zeros((1, 50), np.float32)
        logits[0, ids[-1] + 1] = 1
        return logits


def test_a_draft_model_is_asked_where_the_text_is_new_and_given_back_at_the_end():
    costs = DraftCosts()
    costs.observe_step(1, 0.010)
    model = DraftModel(CountingDecoder(), streams=1, max_len=100)
    speculation = Speculation(costs, 4, model)
    draft = speculation.draft([3, 1, 4], 100, 1)
    assert draft is not None
    assert draft.strength == BY_MODEL
    assert draft.ids == [5, 6, 7, 8][: len(draft.ids)]
    assert model.open_stream() is None
    speculation.close()
    speculation.close()
    assert model.open_stream() is not None
    assert model.open_stream() is None


def test_a_generation_with_drafts_goes_on_in_another_engine_with_the_same_text(
    tmp_path: Path, new_kv: Callable[..., KvFile]
):
    model = write_decoder(tmp_path / "model", all_positions=True, kv_type="int8")
    kv = new_kv(model, slots=1, max_len=256)
    prompt = [(i * 37) % 250 for i in range(30)] * 2
    fields: dict[str, Any] = {"max_new_tokens": 120, "sampler": SamplerSettings(temperature=0.3, seed=5)}
    with EngineDriver() as engine:
        engine.load(model, kv)
        plain, _ = engine.generate(prompt, **fields)
        whole, end = engine.generate(prompt, max_draft=6, **fields)
        assert isinstance(end, Finished)
        assert end.drafted_tokens > 0
        half, _ = engine.generate(prompt, max_draft=6, **(fields | {"max_new_tokens": 60}))
    with EngineDriver() as engine:
        engine.load(model, kv)
        rest, _ = engine.generate(
            prompt, emitted=half, kv_valid_tokens=len(prompt) + len(half) - 1, max_draft=6, **fields
        )
    assert whole == plain
    assert half + rest == plain


def load_with_draft(engine: EngineDriver, model: ModelDescription, draft: ModelDescription, kv: KvFile) -> Loaded:
    request_id = engine.new_id()
    engine.send(LoadModel(request_id=request_id, model=model, threads=1, kv=kv.layout, draft=draft), kv.fd)
    return engine.wait(Loaded, request_id)


def test_an_engine_drafts_with_a_second_model_and_gives_the_same_text(
    engine: EngineDriver, tmp_path: Path, new_kv: Callable[..., KvFile]
):
    model = write_decoder(tmp_path / "model", all_positions=True)
    loaded = load_with_draft(engine, model, write_decoder(tmp_path / "draft"), new_kv(model, slots=1, max_len=256))
    assert loaded.draft_failure == ""
    prompt = [(i * 37) % 250 for i in range(40)]
    plain, _ = engine.generate(prompt, max_new_tokens=60)
    drafted, end = engine.generate(prompt, max_new_tokens=60, max_draft=4)
    assert isinstance(end, Finished)
    assert drafted == plain
    assert end.accepted_tokens > 0


def test_a_draft_model_of_another_vocabulary_is_reported_and_the_target_serves(
    engine: EngineDriver, tmp_path: Path, new_kv: Callable[..., KvFile]
):
    model = write_decoder(tmp_path / "model", all_positions=True)
    draft = write_decoder(tmp_path / "draft")
    tokenizer = tmp_path / "draft" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("hello", "goodbye"))
    loaded = load_with_draft(engine, model, draft, new_kv(model, slots=1, max_len=256))
    assert "other tokens" in loaded.draft_failure
    ids, end = engine.generate([1, 2, 3], max_new_tokens=20, max_draft=4)
    assert isinstance(end, Finished)
    assert len(ids) == 20


def test_an_engine_drafts_from_a_repeating_text_and_says_so(
    engine: EngineDriver, tmp_path: Path, new_kv: Callable[..., KvFile]
):
    model = write_decoder(tmp_path / "model", all_positions=True)
    engine.load(model, new_kv(model, slots=1, max_len=256))
    prompt = [(i * 37) % 250 for i in range(40)] * 2
    plain, end = engine.generate(prompt, max_new_tokens=150)
    assert isinstance(end, Finished)
    assert end.drafted_tokens == 0
    drafted, end = engine.generate(prompt, max_new_tokens=150, max_draft=6)
    assert isinstance(end, Finished)
    assert drafted == plain
    assert end.drafted_tokens > 0
