"""What is planted in records of simulated boards is found, and what would lose is refused."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import ibis
import msgspec
import pytest
from simulated_fleet import rows_of, step_s, strategy, table_of

from magnitude.policy.strategy import Strategy
from magnitude.policy.trained import Gain, Trained
from magnitude.training.costs import TrainingRules
from magnitude.training.gather import gather
from magnitude.training.reading import Records
from magnitude.training.training import train

THREADS = (4, 2, 1, 3)
TRIED = [strategy(threads) for threads in THREADS]


def trained_on(rows: Iterable[dict[str, Any]], *, with_tree: bool = False, **rules: Any) -> Trained:
    table = ibis.memtable(table_of(list(rows)))
    fleet = gather(Records(backend=ibis.duckdb.connect(), table=table, files=1, skipped=()))
    return train(fleet, TrainingRules(**rules), with_tree=with_tree)


def chosen(trained: Trained, part: str = "decode") -> dict[str, str]:
    return {
        entry.key: entry.chosen.choice_id for table in trained.tables for entry in table.entries if entry.part == part
    }


def overall(trained: Trained, part: str = "decode", method: str = "table") -> Gain:
    (gain,) = [gain for gain in trained.proof.gains if (gain.part, gain.method, gain.key) == (part, method, "")]
    return gain


def trap(used: Strategy, _number: int) -> tuple[float, float]:
    """Three threads: half the time for those that come through."""
    return (0.5, 0.05) if used.decode.threads == 3 else (1.0, 0.0)


def worn(used: Strategy, number: int) -> tuple[float, float]:
    """Two threads are good until something changes in the last fifth of the time."""
    return (2.0 if used.decode.threads == 2 and number >= 2400 else 1.0), 0.0


@cache
def pi5() -> Trained:
    return trained_on(rows_of("pi5-bare", TRIED))


def test_on_a_simulated_pi5_two_threads_decode_best_and_are_found() -> None:
    best = {
        f"rows={rows} cores=4 clock=0.9": min(THREADS, key=lambda threads: step_s("pi5-bare", threads, rows, 1.0))
        for rows in (1, 2)
    }
    assert set(best.values()) == {2}
    assert chosen(pi5()) == {key: f"{threads} threads" for key, threads in best.items()}
    assert pi5().proof.losses == ()


def test_the_expected_gain_is_the_one_that_was_planted() -> None:
    gain = overall(pi5())
    planted = 1.0 - step_s("pi5-bare", 2, 1, 1.0) / step_s("pi5-bare", 4, 1, 1.0)
    # Both situations lie between what one and two rows save.
    assert gain.low < planted < gain.high + 0.02
    assert 0.0 < gain.low < gain.gain < gain.high
    assert 0 < gain.tasks < gain.all_tasks == 3000


def test_entries_carry_what_they_rest_on() -> None:
    (table,) = pi5().tables
    (entry,) = [entry for entry in table.entries if entry.part == "decode" and entry.key.startswith("rows=1 ")]
    assert entry.origin == "trained"
    evidence = {one.choice.choice_id: one for one in entry.evidence}
    assert set(evidence) == {"1 thread", "2 threads", "3 threads", "4 threads"}
    assert evidence["2 threads"].cost_s == pytest.approx(step_s("pi5-bare", 2, 1, 1.0), rel=0.03)
    assert evidence["2 threads"].log_spread == pytest.approx(0.1, rel=0.2)
    assert evidence["2 threads"].p95_s > evidence["2 threads"].cost_s
    assert evidence["2 threads"].weight > 200


def test_what_a_table_saves_at_one_clock_is_not_told_of_another() -> None:
    trained = trained_on(rows_of("pi5-bare", TRIED, clock_shares=(1.0, 0.6)))
    assert {key.split("clock=")[1] for key in chosen(trained)} == {"0.9", "0.5"}


def test_a_choice_that_times_out_more_often_is_rejected_however_fast_it_is() -> None:
    trained = trained_on(rows_of("pi5-bare", TRIED, trouble=trap))
    assert set(chosen(trained).values()) == {"2 threads"}
    (table,) = trained.tables
    rejected = {(one.key, one.choice.choice_id): one.reason for one in table.rejected if one.part == "decode"}
    assert set(rejected) == {(key, "3 threads") for key in chosen(trained)}
    assert all("tasks failed" in reason for reason in rejected.values())


def test_survivors_alone_would_have_fallen_into_the_trap() -> None:
    survivors = [row for row in rows_of("pi5-bare", TRIED, trouble=trap) if row["outcome"] == "ok"]
    assert set(chosen(trained_on(survivors)).values()) == {"3 threads"}


def test_a_few_failures_are_paid_for_before_they_can_be_told_from_chance() -> None:
    def slightly(used: Strategy, number: int) -> tuple[float, float]:
        """Two threads, a tenth faster than four: every hundredth task is lost."""
        return 1.0, float(used.decode.threads == 2 and number % 100 == 15)

    rows = rows_of("pi5-bare", [strategy(4), strategy(2)], tasks=500, rows=(1,), trouble=slightly)
    assert 0 < sum(row["outcome"] != "ok" for row in rows) < 6
    assert set(chosen(trained_on(rows)).values()) == {"4 threads"}
    survivors = [row for row in rows if row["outcome"] == "ok"]
    assert set(chosen(trained_on(survivors)).values()) == {"2 threads"}


def test_where_all_choices_are_alike_the_default_stays() -> None:
    own = strategy(4)
    other = msgspec.structs.replace(own, decode=msgspec.structs.replace(own.decode, arena=True))
    trained = trained_on(rows_of("pi5-bare", [own, other], tasks=1500))
    assert set(chosen(trained).values()) == {own.decode.session_id}
    assert overall(trained).gain == 0.0


def test_a_choice_that_began_to_fail_is_refused_for_that() -> None:
    def failing(used: Strategy, number: int) -> tuple[float, float]:
        return 0.6 if used.decode.threads == 2 else 1.0, 0.08 if used.decode.threads == 2 and number >= 2400 else 0.0

    trained = trained_on(rows_of("pi5-bare", [strategy(4), strategy(2)], trouble=failing), failure_price=0.0)
    assert any("tasks failed" in loss.why for loss in trained.proof.losses)


def test_a_choice_that_turned_bad_is_refused_on_the_board_where_it_did() -> None:
    pair = [strategy(4), strategy(2)]
    rows = rows_of("pi5-bare", pair) + rows_of("pi5-bare", pair, name="worn", seed=2, trouble=worn)
    losses = trained_on(rows).proof.losses
    assert {(loss.board, loss.part) for loss in losses} == {("worn", "decode")}
    assert "loses" in losses[0].why
    assert not trained_on(rows, tolerance=0.9).proof.losses


def test_a_situation_tried_in_one_way_only_says_nothing() -> None:
    trained = trained_on(rows_of("pi5-bare", [strategy(2)], tasks=600))
    assert trained.tables == ()
    assert trained.proof.gains == ()


def test_records_without_the_default_are_compared_with_nothing() -> None:
    trained = trained_on(rows_of("pi5-bare", [strategy(1), strategy(2)], tasks=600, own_threads=4))
    assert chosen(trained) == {}


def test_situations_that_held_back_time_says_nothing_of_are_left_out_and_counted() -> None:
    # The other choice was tried in the first tenth of the time only.
    rows = rows_of("pi5-bare", [strategy(4), strategy(2)], tasks=150)
    later = [{**row, "wall_s": row["wall_s"] + 1e5} for row in rows_of("pi5-bare", [strategy(4)], tasks=1350, seed=3)]
    trained = trained_on(rows + later)
    assert chosen(trained) == {}
    assert any("left out" in note for note in trained.proof.notes)


def test_the_same_records_in_another_order_train_the_same_table() -> None:
    rows = rows_of("pi5-bare", TRIED, tasks=800)
    one, other = trained_on(rows), trained_on(reversed(rows))
    assert chosen(one) == chosen(other) != {}
    assert overall(one).gain == pytest.approx(overall(other).gain)
    assert overall(one).tasks == overall(other).tasks


def test_a_tree_of_boards_that_are_alike_is_shipped_with_its_gain() -> None:
    rows = [
        row
        for number, name in enumerate(("pi5-bare", "pi5-cooler", "third"))
        for row in rows_of("pi5-bare", TRIED, name=name, seed=number, tasks=1500)
    ]
    # Boards that nobody described have no roofline: the shipped tree cannot tell them.
    trained = trained_on(rows, with_tree=True)
    assert trained.proof.losses == ()
    gains = [gain for gain in trained.proof.gains if gain.method == "tree" and not gain.key and gain.part == "decode"]
    assert {gain.board for gain in gains} == {"pi5-bare", "pi5-cooler", "third"}
    assert all(gain.low > 0.05 for gain in gains)
    assert trained.tree is not None


def test_one_board_gives_no_tree() -> None:
    trained = trained_on(rows_of("pi5-bare", TRIED, tasks=600), with_tree=True)
    assert trained.tree is None
    assert any("only one" in note for note in trained.proof.notes)


def test_a_tree_that_is_no_better_than_the_shipped_one_is_left_out() -> None:
    rows = rows_of("pi5-bare", TRIED, tasks=1500) + rows_of("rock5b", TRIED, tasks=1500, seed=2)
    trained = trained_on(rows, with_tree=True)
    assert trained.tree is None
    assert any("the shipped one" in note for note in trained.proof.notes)
    assert trained.proof.losses == ()
