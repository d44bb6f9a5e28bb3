from __future__ import annotations

import os
from pathlib import Path

import pytest

from magnitude.errors import ModelError
from magnitude.models.catalogue import open_folder, scan
from magnitude.models.importing.staging import put_in_place, remove_leftovers, remove_whole, staging_folder
from magnitude.models.integrity import file_entry, model_hash
from magnitude.models.manifest import Manifest, SourceEntry, write_manifest
from magnitude.models.previous import forget_previous, previous_of, put_back, take_the_place


def model(folder: Path, weights: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(weights)
    files = {"model.onnx": file_entry(folder / "model.onnx")}
    manifest = Manifest(
        schema=1,
        name="chat",
        kind="tensors",
        family="onnx",
        graph_file="model.onnx",
        source=SourceEntry(format="onnx", file="x.onnx", sha256="00", size_bytes=1),
        files=files,
        weight_bytes=len(weights),
        model_hash=model_hash(files, files),
    )
    write_manifest(folder, manifest)
    return folder


def weights(folder: Path) -> bytes:
    return (folder / "model.onnx").read_bytes()


def replaced(place: Path, content: bytes) -> None:
    """As an import does it."""
    with staging_folder(place, "chat") as staging:
        put_in_place(model(staging, content), place / "chat", refuse_existing=lambda _: None, put=take_the_place)


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    return model(tmp_path / "chat", b"first")


def test_what_an_import_replaces_is_kept_and_not_served(chat: Path) -> None:
    replaced(chat.parent, b"second")
    assert weights(chat) == b"second"
    assert weights(previous_of(chat)) == b"first"
    assert [entry.name for entry in scan(chat.parent)] == ["chat"]
    assert sorted(path.name for path in chat.parent.iterdir()) == [".chat.previous", "chat"]


def test_only_the_last_one_is_kept(chat: Path) -> None:
    for content in (b"second", b"third"):
        replaced(chat.parent, content)
    assert weights(previous_of(chat)) == b"second"
    assert len(list(chat.parent.iterdir())) == 2


def test_adapters_and_edited_templates_of_the_replaced_model_stay_with_it(chat: Path) -> None:
    (chat / "adapters" / "poet").mkdir(parents=True)
    (chat / "adapters" / "poet" / "adapter.safetensors").write_bytes(b"rank 8")
    replaced(chat.parent, b"second")
    assert not (chat / "adapters").exists()
    put_back(chat)
    assert (chat / "adapters" / "poet" / "adapter.safetensors").read_bytes() == b"rank 8"


def test_the_earlier_model_can_be_put_back_and_the_later_one_again(chat: Path) -> None:
    replaced(chat.parent, b"second")
    first_hash = open_folder(previous_of(chat)).model_hash
    put_back(chat)
    assert open_folder(chat).model_hash == first_hash
    assert weights(previous_of(chat)) == b"second"
    put_back(chat)
    assert weights(chat) == b"second"


def test_a_damaged_predecessor_is_not_put_back(chat: Path) -> None:
    replaced(chat.parent, b"second")
    (previous_of(chat) / "model.onnx").write_bytes(b"fIrst")
    with pytest.raises(ModelError, match="content has changed"):
        put_back(chat)
    assert weights(chat) == b"second"


def test_advice_about_a_damaged_predecessor_names_nothing_that_other_verbs_refuse(chat: Path) -> None:
    replaced(chat.parent, b"second")
    (previous_of(chat) / "model.onnx").unlink()
    with pytest.raises(ModelError) as caught:
        put_back(chat)
    assert "rm" not in caught.value.hint.split()
    assert ".previous" not in caught.value.hint
    assert "x.onnx" in caught.value.hint


def test_without_a_predecessor_there_is_nothing_to_put_back(chat: Path) -> None:
    with pytest.raises(ModelError, match="no earlier 'chat'"):
        put_back(chat)


def test_a_model_that_was_removed_can_be_put_back_from_its_predecessor(chat: Path) -> None:
    replaced(chat.parent, b"second")
    chat.rename(chat.with_name("gone"))
    put_back(chat)
    assert weights(chat) == b"first"


def test_a_predecessor_is_forgotten_once(chat: Path) -> None:
    replaced(chat.parent, b"second")
    assert forget_previous(open_folder(chat))
    assert not forget_previous(open_folder(chat))
    assert [path.name for path in chat.parent.iterdir()] == ["chat"]


def test_an_import_that_breaks_off_leaves_the_model_and_its_predecessor(chat: Path) -> None:
    replaced(chat.parent, b"second")
    with pytest.raises(KeyboardInterrupt), staging_folder(chat.parent, "chat") as staging:
        model(staging, b"third")
        raise KeyboardInterrupt
    assert (weights(chat), weights(previous_of(chat))) == (b"second", b"first")


def test_a_whole_model_has_the_name_in_every_moment(chat: Path) -> None:
    """A child replaces the model again and again, and is killed somewhere."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, b".")
            for number in range(10_000):
                replaced(chat.parent, b"%d" % number)
        finally:
            os._exit(0)
    os.read(read, 1)
    for _ in range(2000):
        # One look by name: a second one may meet the next model.
        assert (chat / "manifest.json").exists()
    os.kill(child, 9)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert open_folder(chat).name == "chat"
    remove_leftovers(chat.parent)
    assert {path.name for path in chat.parent.iterdir()} <= {"chat", ".chat.previous"}
    if previous_of(chat).exists():
        put_back(chat)


def test_a_removal_that_is_killed_leaves_no_half_model_and_the_next_import_clears_up(chat: Path) -> None:
    for number in range(2000):
        (chat / f"{number}").touch()
    child = os.fork()
    if not child:
        try:
            remove_whole(chat)
        finally:
            os._exit(0)
    while chat.exists():
        pass
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert scan(chat.parent) == []
    remove_leftovers(chat.parent)
    assert list(chat.parent.iterdir()) == []


def test_a_model_that_was_replaced_while_it_served_is_not_forgotten_for_having_been_good(chat: Path) -> None:
    """An engine is started anew beside the old description; that it once computed right says nothing of the new."""
    served = open_folder(chat)
    replaced(chat.parent, b"second")
    assert not forget_previous(served)
    assert weights(previous_of(chat)) == b"first"
    assert forget_previous(open_folder(chat))
    assert not previous_of(chat).exists()


def test_a_file_system_without_hard_links_keeps_the_predecessor_as_well(
    chat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    replaced(chat.parent, b"second")
    assert (weights(chat), weights(previous_of(chat))) == (b"second", b"first")


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A model of an image: a link in the models folder to a folder that nothing may change."""
    of_image = model(tmp_path / "image/chat", b"of the image")
    (tmp_path / "models").mkdir()
    link = tmp_path / "models/chat"
    link.symlink_to(of_image)
    return link


def of_image(linked: Path) -> dict[str, bytes]:
    folder = linked.parents[1] / "image/chat"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_link_gives_its_place_up_and_what_it_leads_to_stays(
    linked: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of_image(linked)
    if not exchanges:  # a file system that cannot exchange two names
        monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: None)
    replaced(linked.parent, b"of the user")
    assert not linked.is_symlink()
    assert weights(linked) == b"of the user"
    assert previous_of(linked).is_symlink()
    assert weights(previous_of(linked)) == b"of the image"
    assert [entry.name for entry in scan(linked.parent)] == ["chat"]
    assert sorted(path.name for path in linked.parent.iterdir()) == [".chat.previous", "chat"]
    assert of_image(linked) == before


def test_a_link_is_put_back_and_the_users_model_again(linked: Path) -> None:
    before = of_image(linked)
    replaced(linked.parent, b"of the user")
    put_back(linked)
    assert linked.is_symlink()
    assert weights(linked) == b"of the image"
    put_back(linked)
    assert weights(linked) == b"of the user"
    assert previous_of(linked).is_symlink()
    assert of_image(linked) == before


def test_a_link_that_was_replaced_is_forgotten_and_what_it_leads_to_stays(linked: Path) -> None:
    before = of_image(linked)
    replaced(linked.parent, b"of the user")
    assert forget_previous(open_folder(linked))
    assert [path.name for path in linked.parent.iterdir()] == ["chat"]
    assert of_image(linked) == before


def test_a_second_replacement_forgets_the_link_that_the_first_one_kept(linked: Path) -> None:
    replaced(linked.parent, b"of the user")
    replaced(linked.parent, b"another")
    assert not previous_of(linked).is_symlink()
    assert weights(previous_of(linked)) == b"of the user"


def test_a_link_that_leads_nowhere_any_more_is_replaced(linked: Path) -> None:
    linked.unlink()
    linked.symlink_to(linked.parents[1] / "gone")
    replaced(linked.parent, b"of the user")
    assert weights(linked) == b"of the user"
