"""When a numbered generation begins, and when not."""

from __future__ import annotations

from pathlib import Path

from test_dumps import HERE, dumps, learned


def test_what_is_there_already_begins_no_generation(tmp_path: Path) -> None:
    for _ in range(3):
        service = dumps(tmp_path)
        service.load(HERE)
        assert service.save(learned())
        assert service.replace(learned())
    (kept,) = dumps(tmp_path).all()
    assert kept.dump is not None
    assert (kept.dump.generation, kept.generations) == (1, ())


def test_a_run_goes_on_in_its_generation_after_it_has_read_it_again(tmp_path: Path) -> None:
    service = dumps(tmp_path)
    service.load(HERE)
    for samples in range(3):
        service.save(learned(samples))
        service.load(HERE)
    service.replace(learned(10))
    for samples in (11, 12):
        service.load(HERE)
        service.save(learned(samples))
    (kept,) = dumps(tmp_path).all()
    assert kept.dump is not None
    assert (kept.dump.generation, kept.generations) == (2, (1,))
