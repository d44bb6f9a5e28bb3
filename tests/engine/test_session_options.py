from __future__ import annotations

import pytest

from magnitude.engine.sessions import PROVIDERS, session_options


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_session_has_the_threads_it_was_given_and_none_of_them_spins(threads: int) -> None:
    options = session_options(threads)
    assert options.intra_op_num_threads == threads
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_no_session_writes_an_optimised_graph() -> None:
    assert session_options(1).optimized_model_filepath == ""


def test_execution_providers_are_named() -> None:
    assert PROVIDERS == ("CPUExecutionProvider",)
