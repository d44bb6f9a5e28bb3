from hypothesis import given
from hypothesis import strategies as st

from magnitude.schedule.quarantine import REMEMBER_S, REMEMBERED, Progress, Quarantine, Verdict
from magnitude.supervise.loss import EngineLoss

CRASH = EngineLoss("SIGSEGV", "crash")


def test_who_ran_alone_in_two_crashes_without_coming_further_is_refused() -> None:
    quarantine = Quarantine()
    assert quarantine.lost(CRASH, {1: (3, 10)}) == Verdict(suspects=frozenset({1}))
    assert quarantine.lost(CRASH, {1: (3, 10)}) == Verdict(refused=1)


def test_who_came_further_between_two_crashes_is_not_refused() -> None:
    quarantine = Quarantine()
    for tokens in range(50):
        assert quarantine.lost(CRASH, {1: (tokens, 10)}).refused is None


def test_a_kill_from_outside_and_a_planned_replacement_are_nobody_s_fault() -> None:
    quarantine = Quarantine()
    for loss in (EngineLoss("SIGKILL", "killed"), EngineLoss("recycled", "recycled"), EngineLoss("x", "start")):
        for _ in range(5):
            assert quarantine.lost(loss, {1: (0,)}) == Verdict()


def test_what_was_refused_is_known_for_a_while_and_no_memory_grows_with_it() -> None:
    quarantine = Quarantine()
    assert not quarantine.active
    quarantine.remember(b"a", 0.0)
    assert quarantine.active and quarantine.knows(b"a", REMEMBER_S - 1) and not quarantine.knows(b"b", 0.0)
    assert not quarantine.knows(b"a", REMEMBER_S + 1)
    for n in range(REMEMBERED):
        quarantine.remember(str(n).encode(), 1.0)
    assert not quarantine.knows(b"a", 2.0)
    assert all(quarantine.knows(str(n).encode(), 2.0) for n in range(REMEMBERED))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.data())
def test_of_any_number_the_one_that_kills_is_found_and_no_other(needs: list[int], data: st.DataObject) -> None:
    """Each request needs so many steps; one kills the engine at one of its own. They run as admission lets them:
    suspects are tried one at a time, beside those that have come further since."""
    guilty = data.draw(st.integers(0, len(needs) - 1))
    kills_at = data.draw(st.integers(0, needs[guilty] - 1))
    quarantine = Quarantine()
    done = dict.fromkeys(range(len(needs)), 0)
    suspects: set[int] = set()
    crashes = 0
    while done:
        running = [i for i in done if i not in suspects] + sorted(suspects)[:1]
        if guilty in running and done[guilty] == kills_at:
            crashes += 1
            assert crashes <= 2
            progress: dict[int, Progress] = {i: (done[i],) for i in running}
            verdict = quarantine.lost(CRASH, progress)
            suspects |= verdict.suspects
            if verdict.refused is not None:
                assert verdict.refused == guilty
                suspects.discard(guilty)
                del done[guilty]
            continue
        for i in running:
            done[i] += 1
            suspects.discard(i)
            if done[i] == needs[i]:
                del done[i]
                quarantine.over(i)
    assert crashes == 2
