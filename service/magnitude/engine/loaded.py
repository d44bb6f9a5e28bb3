"""A model in memory: its session and whatever drives it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from magnitude.engine.batch import RunningBatch
from magnitude.engine.comparing import CompareJob, compare_decoders, compare_encoders
from magnitude.engine.decoder import Decoder
from magnitude.engine.draft_model import LoadedDraftModel
from magnitude.engine.encoder import EncodeJob, Encoder
from magnitude.engine.generation import Generation, check_generate, take_slot
from magnitude.engine.kv import KvMemory
from magnitude.engine.operator_profile import PhaseRuns
from magnitude.engine.probing import ProbeJob, check_rounds, decoder_runs, encoder_runs
from magnitude.engine.process import forget_mapped_pages, trim_heap
from magnitude.engine.protocol import (
    Embed,
    EmbedAndRank,
    Generate,
    InferTensors,
    LoadAdapter,
    LoadModel,
    Measure,
    PoolUse,
    TensorInfo,
)
from magnitude.engine.ranking import RankJob
from magnitude.engine.run_pool import RunPool
from magnitude.engine.sampling import Sampler, check_settings
from magnitude.engine.session_maker import SessionMaker
from magnitude.engine.session_messages import CompareSession, Probe, ProbedRun, ProfileOperators, ProfilePhase
from magnitude.engine.session_set import SessionSet
from magnitude.engine.session_spec import SessionSpec
from magnitude.engine.sessions import describe
from magnitude.engine.slide import SlidingWindow, can_slide
from magnitude.engine.slot_header import SlotState
from magnitude.engine.speculation import Speculation
from magnitude.engine.tensors import TensorJob
from magnitude.engine.thread_place import ThreadPlace
from magnitude.errors import EngineError, MagnitudeError, ModelError, ModelNotFound, RequestError
from magnitude.models.adapters import kv_hash
from magnitude.models.description import ModelDescription

if TYPE_CHECKING:
    from magnitude.engine.grammar import Grammar, GrammarTokenizer

log = logging.getLogger(__name__)

RunJob = EncodeJob | RankJob | TensorJob | CompareJob

# No new round of measuring begins after so long: it belongs to loading a model, which has a deadline. Eight
# rounds of 1, 2 and 4 rows take half a second with the embedded model; its fallback graph, on a busy machine, took
# more than thirty, and its engine was killed for it again and again.
_MEASURE_S = 3.0
# Verified together when it is tried whether that is exact: 4 tokens behind 24, three times. With a float KV cache not
# one of 72 positions was equal on x86-64, with INT8 all of them.
_VERIFIED, _VERIFIED_PAST, _VERIFIED_TEXTS = 4, 24, 3


class LoadedModel:
    """Opens the jobs of one model. Raises `ModelError` when the model cannot be loaded.

    `kv_fd` is the KV memory of a decoder; it is mapped and stays the caller's to close. `maker` makes its session.
    """

    def __init__(
        self, request: LoadModel, kv_fd: int | None, maker: SessionMaker, place: ThreadPlace | None = None
    ) -> None:
        self.description: ModelDescription = request.model
        self._request = request
        self._place = place
        self._grammar_tokenizer: GrammarTokenizer | None = None
        self._decoder: Decoder | None = None
        self._encoder: Encoder | None = None
        self._pool: RunPool | None = None
        self._kv: KvMemory | None = None
        self._draft: LoadedDraftModel | None = None
        self.draft_failure = ""
        self.batch: RunningBatch | None = None  # of a decoder
        self.max_inter_token_s = request.max_inter_token_ms / 1000
        folder = Path(request.model.folder)
        own = SessionSpec(threads=request.threads)
        self._session: Any = maker.open_own(request.model, request.threads)
        self.sessions = SessionSet(self._session, own, request.model.graph_file)
        # Packing the weights leaves freed buffers and pages that were read only once: 15 MB of 200 for a 124 MB file.
        trim_heap()
        forget_mapped_pages(folder)
        self.inputs: tuple[TensorInfo, ...] = describe(self._session.get_inputs())
        self.outputs: tuple[TensorInfo, ...] = describe(self._session.get_outputs())
        match request.model.kind:
            case "decoder":
                if request.kv is None or kv_fd is None:
                    raise ModelError(f"model {request.model.name} is a decoder but no KV memory came with it")
                self._kv = KvMemory(kv_fd, request.kv)
                try:
                    self._decoder = Decoder(
                        request.model, self._session, self._kv, own=own, max_batch=request.max_batch, place=place
                    )
                except MagnitudeError:
                    self.close()
                    raise
                self.batch = RunningBatch(self._decoder, request.max_batch, sessions=self.sessions)
                if request.draft is not None:
                    self._open_draft_model(request.draft, request, self._decoder)
            case "embedder" | "reranker":
                self._pool = RunPool()
                self._encoder = Encoder(
                    request.model,
                    self._session,
                    max_run_s=self.max_inter_token_s,
                    pool=self._pool,
                    sessions=self.sessions,
                    place=place,
                )
            case "tensors":
                pass

    @property
    def name(self) -> str:
        return self.description.name

    def made_by(self, request: LoadModel, kv_fd: int | None) -> bool:
        """Whether loading by this request would give the same again: the same model, KV memory and settings."""
        if msgspec.structs.replace(request, request_id=self._request.request_id) != self._request:
            return False
        if self._kv is None or kv_fd is None:
            return self._kv is None
        mine, its = os.fstat(self._kv.fd), os.fstat(kv_fd)
        return (mine.st_dev, mine.st_ino) == (its.st_dev, its.st_ino)

    @property
    def pool_use(self) -> PoolUse:
        """What the runs of an encoder leave behind; nothing for other models."""
        return self._pool.use if self._pool is not None else PoolUse()

    def check(self, request: Generate) -> None:
        """Raise `RequestError` for a request that cannot run here."""
        decoder, kv = self._decoder_parts()
        vocab_size = decoder.shape.vocab_size
        if request.adapter not in decoder.adapters:
            raise RequestError(f"adapter {request.adapter} is not loaded", param="model", code="adapter_not_loaded")
        check_generate(request, slots=kv.layout.slots, max_len=kv.layout.max_len, vocab_size=vocab_size)
        check_settings(request.sampler, vocab_size)
        overflows = len(request.prompt) + request.max_new_tokens > kv.layout.max_len
        if request.overflow == "slide" and overflows and (reason := can_slide(decoder.shape, kv.layout)):
            raise RequestError(
                f"model {self.name} cannot go on beyond its {kv.layout.max_len} positions: {reason}",
                code="sliding_unsupported",
                param="truncation",
                hint="Send `truncation: disabled` or fewer new tokens, or raise engine.context_length",
            )

    def build_grammar(self, request: Generate) -> Grammar:
        """The state of the request's grammar after what was emitted; may be called from another thread.

        Takes up to about a second. Raises `RequestError` `invalid_grammar`, or `ModelError` when the model's
        tokenizer does not allow constrained output.
        """
        assert request.grammar is not None
        decoder, _ = self._decoder_parts()
        # Built at the first constrained request: most models never see one, and it costs time and memory.
        # The library is imported then, too: it is 3 MB of code.
        tokenizer = self._grammar_tokenizer
        if tokenizer is None:
            from magnitude.engine.grammar import GrammarTokenizer

            tokenizer = self._grammar_tokenizer = GrammarTokenizer(
                self._tokenizer_text(), decoder.shape.vocab_size, self.description.special.eos
            )
            trim_heap()  # building leaves twice its own size behind (32 MB for 49,152 tokens)
        return tokenizer.start(request.grammar, request.emitted)

    def take_slot(self, request: Generate) -> SlotState:
        """Make the slot of a request that passed `check` its own, with what can be reused."""
        decoder, kv = self._decoder_parts()
        assert self.batch is not None
        source = (request.kv_copy_from, request.adapter)
        running = next((member for member in self.batch.members if (member.slot, member.adapter) == source), None)
        key = kv_hash(self.description.model_hash, decoder.adapters.hash_of(request.adapter))
        return take_slot(request, kv, key, running)

    def open_generation(
        self,
        request: Generate,
        state: SlotState,
        grammar: Grammar | None,
        received_s: float,
        clock: Callable[[], float],
    ) -> Generation:
        """Rebuild the state of a request in the slot that it took. Nothing is computed yet."""
        decoder, kv = self._decoder_parts()
        return Generation(
            request,
            state=state,
            max_len=kv.layout.max_len,
            window=self._window(request, state, clock),
            sampler=Sampler(
                request.sampler,
                vocab_size=decoder.shape.vocab_size,
                prompt=request.prompt,
                emitted=request.emitted,
                logprobs=request.logprobs,
            ),
            grammar=grammar,
            received_s=received_s,
            speculation=self._speculation(request),
            clock=clock,
        )

    def _speculation(self, request: Generate) -> Speculation | None:
        if not request.max_draft or self._decoder is None or self.batch is None or not self._decoder.can_verify:
            return None
        model = self._draft.drafts if self._draft is not None else None
        return Speculation(self.batch.draft_costs, request.max_draft, model)

    def _open_draft_model(self, draft: ModelDescription, request: LoadModel, decoder: Decoder) -> None:
        """A draft model that cannot be used costs speed only, so it does not keep its target from serving."""
        assert request.kv is not None
        try:
            if not decoder.can_verify:
                raise ModelError(f"model {request.model.name} gives logits for its last position only")
            self._draft = LoadedDraftModel(
                draft,
                request.model,
                threads=request.threads,
                streams=request.max_batch,
                max_len=request.kv.max_len,
            )
        except MagnitudeError as error:
            log.warning("model %s runs without its draft model: %s", request.model.name, error)
            self.draft_failure = error.message

    def load_adapter(self, request: LoadAdapter) -> None:
        """Raises `ModelError` for an adapter that is damaged or does not fit, `RequestError` if it is there."""
        decoder, _ = self._decoder_parts()
        decoder.adapters.load(request.name, Path(request.folder), request.adapter_hash)

    def unload_adapter(self, name: str) -> None:
        """Raises `RequestError` for an adapter that is not loaded or that an open generation computes with."""
        decoder, _ = self._decoder_parts()
        assert self.batch is not None  # a decoder has one
        if any(member.adapter == name for member in self.batch.members):
            raise RequestError(f"adapter {name} is in use", code="adapter_in_use", hint="Ask again in a moment")
        decoder.adapters.unload(name)

    def _window(self, request: Generate, state: SlotState, clock: Callable[[], float]) -> SlidingWindow | None:
        decoder, kv = self._decoder_parts()
        if request.overflow == "stop" or can_slide(decoder.shape, kv.layout):
            return None
        return SlidingWindow(kv, request.slot, state, decoder.shape.rope_frequencies, clock)

    def measure(self, request: Measure, clock: Callable[[], float]) -> tuple[float, ...]:
        """Shortest time of a decode step for each number of rows. What the slot held is lost."""
        decoder, kv = self._decoder_parts()
        if not 0 <= request.slot < kv.layout.slots or max(request.rows, default=0) > decoder.prefill_row:
            raise RequestError("there is no such slot, or there are fewer rows than are to be measured", param="rows")
        if request.past_tokens + 1 > kv.layout.max_len:
            raise RequestError("past_tokens do not fit a slot", param="past_tokens")
        kv.open_slot(request.slot, self.description.model_hash).begin([])
        for row in range(max(request.rows, default=0)):
            decoder.show(row, request.slot)
        best_s = dict.fromkeys(request.rows, math.inf)
        # All sizes in turn, and the shortest time of each: whatever else the board does while it starts can only make
        # a step longer, and would otherwise decide for good between sizes that were measured at different moments.
        begun_s = clock()
        for _ in range(request.steps):
            if clock() - begun_s > _MEASURE_S:
                break
            for rows in best_s:
                started_s = clock()
                # All rows write the same numbers to the same place, and unused positions are zero: neither changes
                # how long a step takes.
                decoder.step([0] * rows, [request.past_tokens] * rows)
                best_s[rows] = min(best_s[rows], clock() - started_s)
        return tuple(best_s[rows] for rows in request.rows)

    def verifies_exactly(self, slot: int) -> bool:
        """Whether a verification gives the logits of plain steps, to the bit. What the slot held is lost."""
        decoder, kv = self._decoder_parts()
        vocab, width, past = decoder.shape.vocab_size, _VERIFIED, _VERIFIED_PAST
        if not decoder.can_verify or past + width > kv.layout.max_len:
            return False
        kv.open_slot(slot, self.description.model_hash).begin([])
        decoder.show(decoder.prefill_row, slot)
        decoder.show(0, slot)
        for seed in range(_VERIFIED_TEXTS):
            # Any ids do: what is compared is arithmetic, not text.
            ids = [(7919 * (seed + 1) * (position + 1)) % vocab for position in range(past + width)]
            decoder.extend(decoder.prefill_row, ids[:past], 0)
            together = decoder.extend(0, ids[past:], past, "all").copy()
            for at, token in enumerate(ids[past:]):
                if not np.array_equal(decoder.step([token], [past + at])[0], together[at]):
                    return False
        return True

    def _decoder_parts(self) -> tuple[Decoder, KvMemory]:
        if self._decoder is None or self._kv is None:
            raise self._cannot("generate text")
        return self._decoder, self._kv

    def open_embed(self, request: Embed, clock: Callable[[], float]) -> EncodeJob:
        if self._encoder is None:
            raise self._cannot("embed text")
        return EncodeJob(request, self._encoder, clock)

    def open_ranking(self, request: EmbedAndRank, clock: Callable[[], float]) -> RankJob:
        if self._encoder is None or self.description.kind != "embedder":
            raise self._cannot("embed text")
        return RankJob(request, self._encoder, clock)

    def open_tensors(self, request: InferTensors, clock: Callable[[], float]) -> TensorJob:
        if self._decoder is not None:
            raise self._cannot("be called with plain tensors, because its KV cache lives in the service")
        return TensorJob(request, self._session, clock, self.sessions, self._place)

    def add_session(self, spec: SessionSpec, session: Any, added_bytes: int) -> None:
        """A further session of this model, for the runs that name it. Raises `ModelError` when it does not fit."""
        if self._decoder is not None:
            self._decoder.add_session(spec, session)
        elif self._encoder is not None:
            self._encoder.add_session(spec, session)
        elif (describe(session.get_inputs()), describe(session.get_outputs())) != (self.inputs, self.outputs):
            raise ModelError(
                f"model {self.name}: {spec.graph_file} has other inputs or outputs than its own graph",
                param=spec.graph_file,
                hint="Name a graph of the same model",
            )
        self.sessions.add(spec, session, added_bytes)

    def release_session(self, spec: SessionSpec) -> None:
        """Let go of a further session, if it is there."""
        if spec not in self.sessions or self.sessions.known_as(spec) is None:
            return
        if self.batch is not None:
            self.batch.forget(spec)
        if self._decoder is not None:
            self._decoder.drop_session(spec)
        if self._encoder is not None:
            self._encoder.drop_session(spec)
        self.sessions.remove(spec)

    def check_profile(self) -> None:
        """Raise `RequestError` for a model whose operators cannot be told apart by what they are for."""
        if self.description.kind == "tensors":
            raise self._cannot("be profiled: what its tensors mean is not known")

    def open_comparison(self, request: CompareSession) -> CompareJob:
        """Raises `EngineError` when there is no such session, `RequestError` for texts that cannot be computed."""
        session = self._prepared(request.session)
        if self._encoder is not None:
            return compare_encoders(request, session, self._encoder)
        decoder, kv = self._decoder_parts()
        return compare_decoders(request, session, decoder, kv, self.description.model_hash)

    def open_probe(self, request: Probe, clock: Callable[[], float]) -> ProbeJob:
        """Raises `EngineError` when a session is not there, `RequestError` for runs that cannot be done."""
        check_rounds(request)
        known = tuple(msgspec.structs.replace(run, session=self._prepared(run.session)) for run in request.runs)
        request = msgspec.structs.replace(request, runs=known)
        if self._encoder is not None:
            return ProbeJob(request, encoder_runs(request, self._encoder), clock)
        decoder, kv = self._decoder_parts()
        return ProbeJob(request, decoder_runs(request, decoder, kv, self.description.model_hash), clock)

    def profiled_sessions(self) -> dict[SessionSpec, tuple[ProfilePhase, ...]]:
        """How the sessions in force are made, and which runs they do."""
        prompts = self.sessions.in_force_as("prefill")
        if self._decoder is None:
            return {prompts: ("encode",)}
        answers = self.sessions.in_force_as("decode")
        return (
            {answers: ("decode", "prefill")} if answers == prompts else {answers: ("decode",), prompts: ("prefill",)}
        )

    def begin_profile(
        self, request: ProfileOperators, phases: tuple[ProfilePhase, ...], twin: SessionSpec, session: Any
    ) -> tuple[PhaseRuns, ...]:
        """The runs of the phases by a twin of their session, until `end_profile`. What the slot held is lost.

        Raises `ModelError` when its graph is not the model's, `RequestError` for runs that cannot be done.
        """
        step, piece = (ProbedRun(session=twin, rows=1, tokens=tokens) for tokens in (1, request.tokens))
        probe = Probe(
            request_id=request.request_id,
            model=request.model,
            slot=request.slot,
            runs=(step, piece),
            rounds=request.steps,
            past_tokens=request.past_tokens,
        )
        check_rounds(probe)
        if self._encoder is not None:
            self._encoder.add_session(twin, session)
            (text,) = encoder_runs(msgspec.structs.replace(probe, runs=(piece,)), self._encoder)
            return (PhaseRuns(phase="encode", tokens=request.tokens, run=text, counted=request.steps),)
        decoder, kv = self._decoder_parts()
        decoder.add_session(twin, session)
        decode, prefill = decoder_runs(probe, decoder, kv, self.description.model_hash)
        known = {
            "decode": PhaseRuns(phase="decode", tokens=1, run=decode, counted=request.steps),
            "prefill": PhaseRuns(phase="prefill", tokens=request.tokens, run=prefill, counted=1),
        }
        return tuple(known[phase] for phase in phases)

    def end_profile(self, twin: SessionSpec) -> None:
        """Let go of the twin."""
        if self._decoder is not None:
            self._decoder.drop_session(twin)
        if self._encoder is not None:
            self._encoder.drop_session(twin)

    def _prepared(self, spec: SessionSpec | None) -> SessionSpec | None:
        if spec not in self.sessions:
            assert spec is not None
            raise EngineError(
                f"model {self.name} has no session with {spec.session_id}",
                code="session_not_prepared",
                hint="Prepare it first",
            )
        return self.sessions.known_as(spec)

    def trim(self) -> None:
        """Drop what can be made again: bound shapes of an encoder with their memory, the tables of grammars (those
        that running generations use stay until they are done)."""
        self._grammar_tokenizer = None
        if self._encoder is not None:
            self._encoder.buffers.trim()

    def close(self) -> None:
        """Let go of session, bindings and mapping, in this order."""
        self.batch = None
        if self._draft is not None:
            self._draft.close()
            self._draft = None
        if self._decoder is not None:
            self._decoder.close()
        self.sessions.close()
        self._decoder = self._encoder = self._session = self._grammar_tokenizer = None
        if self._kv is not None:
            self._kv.close()
            self._kv = None

    def _tokenizer_text(self) -> str:
        name = self.description.tokenizer_file
        if name is None:
            raise ModelError(
                f"model {self.description.name} has no tokenizer, so its output cannot be constrained",
                code="grammar_unsupported",
                hint="Send the request without response_format and tools",
            )
        path = Path(self.description.folder) / name
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path} cannot be read: {error}", param=str(path)) from error

    def _cannot(self, what: str) -> RequestError:
        return RequestError(
            f"model {self.description.name} is of kind {self.description.kind} and cannot {what}",
            code="model_kind_mismatch",
            param="model",
            hint="Name a model of the right kind",
        )


def find_loaded(models: Mapping[str, LoadedModel], name: str) -> LoadedModel:
    """The model of that name. Raises `ModelNotFound` when it is not loaded."""
    model = models.get(name)
    if model is None:
        raise ModelNotFound(f"model {name} is not loaded", param="model", hint="See the list of models for what is")
    return model
