from __future__ import annotations

from pathlib import Path

from magnitude.engine.stats import Progress, parse_cpu_features, parse_status, read_cpu_features, read_memory

STATUS = "Name:\tpython\nVmRSS:\t  123456 kB\nRssAnon:\t   1000 kB\nRssFile:\t 500 kB\n"


def test_memory_figures_are_bytes():
    use = parse_status(STATUS)
    assert (use.rss_bytes, use.anon_bytes) == (123456 * 1024, 1000 * 1024)


def test_figures_come_from_the_given_root_and_are_zero_where_there_is_none(tmp_path: Path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(STATUS)
    assert read_memory(tmp_path).anon_bytes == 1000 * 1024
    assert read_memory(tmp_path / "nowhere").rss_bytes == 0
    assert read_cpu_features(tmp_path) == ()


def test_cpu_features_are_read_on_x86_and_on_arm():
    assert parse_cpu_features("processor\t: 0\nflags\t\t: sse2 avx2 avx\n") == ("avx", "avx2", "sse2")
    assert parse_cpu_features("processor\t: 0\nFeatures\t: fp asimd asimddp\n") == ("asimd", "asimddp", "fp")
    assert parse_cpu_features("processor : 0\n") == ()


def test_a_run_is_progress_when_it_is_finished_and_its_age_shows_while_it_lasts():
    now = [10.0]
    progress = Progress(clock=lambda: now[0])
    progress.run_begins()
    now[0] = 12.5
    assert progress.busy_s() == 2.5
    progress.run_ends(finished=True)
    assert (progress.steps, progress.busy_s()) == (1, 0.0)
    progress.run_begins()
    progress.run_ends(finished=False)
    assert progress.steps == 1
