"""2,000 malformed requests against the real service, with valid ones between them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.assault import SERVICE_SETTINGS, AssaultResult, Snapshot, assault
from bench.malformed import requests
from bench.service_process import running_service

REQUESTS = 2000
SEED = 1
# A snapshot can catch a few connections that are closing.
OPEN_FILES_TOLERANCE = 8
# Fragmentation after the warm-up moves a heap by a few megabytes either way; a leak of one request's body (the
# largest is 5 MB, and some 70 of them are sent) would be far above this.
RSS_TOLERANCE_BYTES = 40_000_000

pytestmark = [pytest.mark.models, pytest.mark.slow]


@pytest.fixture(scope="module")
def result(magnitude_home: Path) -> Iterator[AssaultResult]:
    with running_service(magnitude_home / "models", SERVICE_SETTINGS) as service:
        yield assault(service, requests(SEED, REQUESTS), REQUESTS)


def test_malformed_requests_never_get_a_server_error(result: AssaultResult) -> None:
    assert result.sent == REQUESTS
    assert result.server_errors == []


def test_every_malformed_request_gets_an_answer_or_a_closed_connection(result: AssaultResult) -> None:
    assert result.silent == []


def test_valid_requests_between_malformed_ones_all_succeed(result: AssaultResult) -> None:
    assert result.valid_sent == REQUESTS // 20
    assert result.failed_valid == []


def test_malformed_requests_kill_neither_service_nor_engine(result: AssaultResult) -> None:
    assert result.service_alive
    assert len(result.engine_pids) == 1


def test_memory_and_open_files_stay_flat_under_malformed_requests(result: AssaultResult) -> None:
    first, *_, last = result.snapshots
    assert_flat(first, last)


def assert_flat(first: Snapshot, last: Snapshot) -> None:
    assert first.engine is not None
    assert last.engine is not None
    for before, after in ((first.service, last.service), (first.engine, last.engine)):
        assert after.open_files <= before.open_files + OPEN_FILES_TOLERANCE
        assert after.rss_less_kv_bytes <= before.rss_less_kv_bytes + RSS_TOLERANCE_BYTES
