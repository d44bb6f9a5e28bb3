from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.text.stops import StopFilter

PIECES = st.lists(st.text(alphabet="ab", max_size=4), max_size=12)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=4)


@given(pieces=PIECES, stops=STOPS)
def test_the_text_ends_where_the_first_stop_begins(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    filtered = StopFilter(stops)
    out = "".join([*(filtered.push(p) for p in pieces), filtered.finish()])
    ends = [whole.find(s) for s in stops if s in whole]
    assert filtered.stopped == bool(ends)
    # A stop that is complete earlier wins over one that began earlier but is complete later.
    assert not any(s in out for s in stops)
    assert whole.startswith(out)
    if not ends:
        assert out == whole


@given(pieces=PIECES, stops=STOPS)
def test_only_a_possible_beginning_of_a_stop_is_held_back(pieces: list[str], stops: list[str]) -> None:
    filtered, given_out, seen = StopFilter(stops), "", ""
    for piece in pieces:
        given_out += filtered.push(piece)
        seen += piece
        if filtered.stopped:
            return
        held = seen[len(given_out) :]
        assert held == "" or any(s.startswith(held) for s in stops)


def test_a_stop_over_two_pieces_is_found() -> None:
    filtered = StopFilter(["\n\nUser:"])
    assert [filtered.push(p) for p in ("hi", "\n", "\nUs", "er: x", "y")] == ["hi", "", "", "", ""]
    assert filtered.stopped


def test_text_that_turns_out_to_be_no_stop_is_given_out() -> None:
    filtered = StopFilter(["END"])
    assert filtered.push("the E") == "the "
    assert filtered.push("Nd") == "ENd"
    assert filtered.push("E") == ""
    assert filtered.finish() == "E"


def test_empty_stops_are_no_stops() -> None:
    filtered = StopFilter(["", ""])
    assert filtered.push("abc") == "abc"
    assert not filtered.stopped
