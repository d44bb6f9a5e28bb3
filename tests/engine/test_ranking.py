from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_driver import EngineDriver
from tiny_decoder import write_encoder

from magnitude.engine.encoder import EncodeJob, Encoder
from magnitude.engine.protocol import Embed, EmbedAndRank, Failed, Ranked, Vectors
from magnitude.engine.ranking import RankJob
from magnitude.engine.sessions import open_session
from magnitude.errors import RequestError

RNG = np.random.default_rng(4)
QUERY = [7, 8, 9]
DOCUMENTS = [[int(i) for i in RNG.integers(0, 250, RNG.integers(1, 64))] for _ in range(90)]


@pytest.fixture
def encoder(folder: Path) -> Encoder:
    return encoder_of(folder, normalised=False)


def encoder_of(folder: Path, *, normalised: bool) -> Encoder:
    model = write_encoder(folder)
    assert model.encoder is not None
    shape = msgspec.structs.replace(model.encoder, normalised=normalised)
    return Encoder(msgspec.structs.replace(model, encoder=shape), open_session(folder / "model.onnx", 1))


def rank(encoder: Encoder, query: list[int], documents: list[list[int]], top_k: int) -> Ranked:
    request = EmbedAndRank(request_id=1, model="tiny-encoder", query=query, documents=documents, top_k=top_k)
    job, messages = RankJob(request, encoder), []
    while not job.finished:
        messages += job.advance()
    (answer,) = messages
    assert isinstance(answer, Ranked)
    return answer


def vectors(encoder: Encoder, inputs: list[list[int]]) -> np.ndarray:
    job, messages = EncodeJob(Embed(request_id=1, model="tiny-encoder", inputs=inputs), encoder), []
    while not job.finished:
        messages += job.advance()
    (answer,) = messages
    assert isinstance(answer, Vectors)
    return np.frombuffer(answer.data, "<f4").reshape(answer.count, answer.width)


def test_documents_are_ranked_by_the_cosine_of_the_vectors_that_embedding_gives(encoder: Encoder):
    query, rows = vectors(encoder, [QUERY])[0], vectors(encoder, DOCUMENTS)
    cosines = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    answer = rank(encoder, QUERY, DOCUMENTS, 5)
    assert answer.indices == [int(i) for i in np.argsort(-cosines, kind="stable")[:5]]
    assert np.allclose(answer.scores, np.sort(cosines)[::-1][:5], atol=1e-5)


def test_vectors_that_the_graph_has_normalised_are_multiplied_as_they_are(folder: Path):
    encoder = encoder_of(folder, normalised=True)
    query, rows = vectors(encoder, [QUERY])[0], vectors(encoder, DOCUMENTS)
    answer = rank(encoder, QUERY, DOCUMENTS, 90)
    assert np.allclose(answer.scores, np.sort(rows @ query)[::-1], atol=1e-4)


def test_embeddings_between_two_runs_of_a_ranking_do_not_disturb_it(encoder: Encoder):
    quiet = rank(encoder, QUERY, DOCUMENTS, 9)
    request = EmbedAndRank(request_id=1, model="tiny-encoder", query=QUERY, documents=DOCUMENTS, top_k=9)
    job, messages = RankJob(request, encoder), []
    while not job.finished:
        messages += job.advance()
        vectors(encoder, [[3] * 17, [5]])
    (answer,) = messages
    assert isinstance(answer, Ranked)
    assert (answer.indices, answer.scores) == (quiet.indices, quiet.scores)


def test_fewer_documents_than_asked_for_are_all_answered(encoder: Encoder):
    assert len(rank(encoder, QUERY, DOCUMENTS[:3], 8).indices) == 3
    assert rank(encoder, QUERY, [], 8).indices == []


def test_what_cannot_be_ranked_is_refused(encoder: Encoder):
    for query, documents, top_k in (([], [[1]], 1), ([1], [[]], 1), ([1], [[1] * 65], 1), ([1], [[1]], 0)):
        with pytest.raises(RequestError):
            rank(encoder, query, documents, top_k)


def test_an_engine_answers_a_ranking_with_places_and_scores_only(engine: EngineDriver, folder: Path):
    model = write_encoder(folder)
    engine.load(model)
    request_id = engine.new_id()
    engine.send(EmbedAndRank(request_id=request_id, model=model.name, query=QUERY, documents=DOCUMENTS, top_k=3))
    answer = engine.wait(Ranked, request_id)
    assert len(answer.indices) == len(answer.scores) == 3
    assert answer.scores == sorted(answer.scores, reverse=True)
    stats = engine.stats()
    assert stats.open_requests == 0
    assert stats.run_pool.peak_bytes >= stats.run_pool.mean_bytes


def test_a_model_that_gives_scores_cannot_rank_by_vectors(engine: EngineDriver, folder: Path):
    model = msgspec.structs.replace(write_encoder(folder), kind="reranker")
    engine.load(model)
    request_id = engine.new_id()
    engine.send(EmbedAndRank(request_id=request_id, model=model.name, query=[1], documents=[[1]], top_k=1))
    failed = engine.next()
    assert isinstance(failed, Failed)
    assert failed.code == "model_kind_mismatch"
