from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnitude.firstboot.identity import boot_file, is_machine_id, settle

FIRST, SECOND = "0123456789abcdef" * 2, "f" * 32

ids = st.text("0123456789abcdef", min_size=32, max_size=32).filter(is_machine_id)
texts = st.one_of(ids, st.sampled_from(["", "uninitialized", "0" * 32, "ABC", FIRST[:31], f"{FIRST}\n"]))
files = st.one_of(st.none(), st.just(""), ids.map(boot_file), st.text(max_size=60))


def test_the_first_id_is_kept_and_told_to_the_boot_loader() -> None:
    todo = settle(running=FIRST, kept="", at_boot_loader="")
    assert (todo.keep, todo.for_boot_loader, todo.notice) == (FIRST, FIRST, "")


def test_an_id_that_systemd_made_for_one_boot_changes_nothing() -> None:
    """As after an update, while the boot loader does not know it."""
    todo = settle(running=SECOND, kept=FIRST, at_boot_loader="")
    assert (todo.keep, todo.for_boot_loader) == ("", FIRST)


def test_a_boot_loader_that_does_not_pass_it_on_is_told_of() -> None:
    assert settle(running=SECOND, kept=FIRST, at_boot_loader=boot_file(FIRST)).notice
    assert not settle(running=FIRST, kept=FIRST, at_boot_loader=boot_file(FIRST)).notice


def test_where_there_is_no_boot_partition_nothing_is_written_for_it() -> None:
    todo = settle(running=FIRST, kept="", at_boot_loader=None)
    assert (todo.keep, todo.for_boot_loader) == (FIRST, "")


@given(texts, texts, files)
def test_a_device_keeps_one_id_for_good(running: str, kept: str, at_boot_loader: str | None) -> None:
    todo = settle(running=running, kept=kept, at_boot_loader=at_boot_loader)
    if is_machine_id(kept):
        assert todo.keep == ""
    if todo.keep:
        assert is_machine_id(todo.keep)
    if todo.for_boot_loader:
        assert todo.for_boot_loader == (kept if is_machine_id(kept) else running)
    # What was done is not done again.
    after = settle(
        running=running,
        kept=todo.keep or kept,
        at_boot_loader=boot_file(todo.for_boot_loader) if todo.for_boot_loader else at_boot_loader,
    )
    assert (after.keep, after.for_boot_loader) == ("", "")


def test_two_devices_from_one_image_get_two_ids() -> None:
    """Each boots with an id of its own, because the image has none."""
    kept = {settle(running=running, kept="", at_boot_loader="").keep for running in (FIRST, SECOND)}
    assert kept == {FIRST, SECOND}
