"""`magnitude strategy`, by a running service and by its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_service import FakeService, at
from typer.testing import CliRunner, Result

from fake_strategies import FOUR, FakeStrategies, learned_of
from magnitude.cli.main import app
from magnitude.cli.strategy_source import binding_here
from magnitude.config import Settings
from magnitude.engine.session_spec import SessionSpec
from magnitude.errors import ConfigError, MagnitudeError, ModelNotFound, RequestError
from magnitude.models.catalogue import open_folder
from magnitude.persist import sealed
from magnitude.policy.dump_exchange import exported
from magnitude.policy.dumps import Dumps
from magnitude.policy.learned import Entry, Learned
from magnitude.policy.pinned import Pinned
from magnitude.policy.trained import SCHEMA, ModelTable, Proof, Trained


@pytest.fixture
def strategies(service: FakeService, tmp_path: Path) -> FakeStrategies:
    service.strategies = FakeStrategies(tmp_path, "tiny-chat", "tiny-embed")
    return service.strategies


@pytest.fixture
def models(own_home: Path) -> Path:
    """A model folder in the home, of another's layout: nothing of it is computed here."""
    golden = Path(__file__).resolve().parent.parent / "golden"
    shutil.copytree(golden / "genai_tiny_llama", own_home / "models" / "tiny-chat")
    # No service of this machine is to be found at the usual port.
    (own_home / "magnitude.yaml").write_text('server: {listen: "", unix_socket: fake.sock}\n')
    return own_home / "models"


def learned_here(models: Path, **changed: Any) -> Learned:
    """As a service on this machine would have learned it."""
    binding = binding_here("tiny-chat", open_folder(models / "tiny-chat").model_hash, Settings())
    return msgspec.structs.replace(learned_of("tiny-chat"), binding=msgspec.structs.replace(binding, **changed))


def said(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(result: Result) -> MagnitudeError:
    assert isinstance(result.exception, MagnitudeError), (result.output, result.exception)
    return result.exception


# --- with a running service ---


def test_show_tells_the_table_what_it_holds_for_and_what_runs(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies
) -> None:
    strategies.dumps.save(strategies.known["tiny-chat"])
    strategies.dumps.pin(strategies.known["tiny-chat"].binding, Pinned(board="pi5-bare", model="tiny-chat", chunk=64))
    text = said(cli.invoke(app, ["strategy", "show", "tiny-chat", *at(service)]))
    rows = [line.split() for line in text.splitlines()]
    assert [*next(row for row in rows if row[0] == "decode")[:11]] == [
        "decode",
        "rows=1",
        "cores=4",
        "clock=0.9",
        "*",
        "2",
        "threads",
        "11",
        "ms/step",
        "5%",
        "90",
    ]
    assert ["4", "threads", "16", "ms/step", "5%", "20"] in rows
    assert "bound to: board pi5-bare, weights tttttttttttt, ONNX Runtime 1.32.0, CPU asimd" in text
    assert "90 samples, generation 1" in text
    assert "runs now: prompts 2 threads in pieces of 128" in text
    assert "fixed: prompts in pieces of 64" in text
    assert "rejected: decode by 4 threads at rows=1 cores=4 clock=0.9: tasks timed out" in text
    assert "tiny-embed" not in text


def test_show_gives_all_models_as_json(cli: CliRunner, service: FakeService, strategies: FakeStrategies) -> None:
    found = json.loads(said(cli.invoke(app, ["strategy", "show", "--json", *at(service)])))
    assert [one["model"] for one in found] == ["tiny-chat", "tiny-embed"]
    assert found[0]["learned"]["entries"][0]["chosen"]["session"]["threads"] == 2


def test_an_export_is_imported_again_and_the_service_takes_it_up(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, tmp_path: Path
) -> None:
    file = tmp_path / "dump.json"
    assert "(1 situation)" in said(
        cli.invoke(app, ["strategy", "export", "tiny-chat", "-o", str(file), *at(service)])
    )
    assert said(cli.invoke(app, ["strategy", "reset", "tiny-chat", "--yes", *at(service)]))
    assert strategies.known["tiny-chat"].entries == ()
    text = said(cli.invoke(app, ["strategy", "import", str(file), *at(service)]))
    assert text.startswith("tiny-chat: 1 situation imported as it is\nin the service at unix:")
    assert strategies.known["tiny-chat"].entries[0].origin == "imported"
    assert strategies.reread_models == ["tiny-chat", "tiny-chat"]


def test_a_file_that_is_no_dump_is_refused_by_the_service_too(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, tmp_path: Path
) -> None:
    file = tmp_path / "dump.json"
    file.write_bytes(b"\xff\x00 no text")
    error = refused(cli.invoke(app, ["strategy", "import", str(file), *at(service)]))
    assert error.code == "dump_invalid"
    assert strategies.reread_models == []


def test_another_binding_is_refused_with_a_hint_and_taken_weakly_on_request(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, tmp_path: Path
) -> None:
    strategies.known["tiny-embed"] = learned_of("tiny-chat", ort_version="1.31.0")
    file = tmp_path / "dump.json"
    said(cli.invoke(app, ["strategy", "export", "tiny-embed", "-o", str(file), *at(service)]))
    error = refused(cli.invoke(app, ["strategy", "import", str(file), "-m", "tiny-chat", *at(service)]))
    assert "ONNX Runtime 1.31.0 -> 1.32.0" in error.message
    assert "--as-prior" in error.hint
    text = said(cli.invoke(app, ["strategy", "import", str(file), "-m", "tiny-chat", "--as-prior", *at(service)]))
    assert "imported as a hint" in text


def test_generations_are_compared_with_what_is_known_now(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies
) -> None:
    said(cli.invoke(app, ["strategy", "reset", "tiny-chat", "-y", *at(service)]))
    text = said(cli.invoke(app, ["strategy", "diff", "tiny-chat@1", "tiny-chat", *at(service)]))
    assert "gone" in text
    assert "2 threads, 11 ms/step" in text
    same = said(cli.invoke(app, ["strategy", "diff", "tiny-chat@1", "tiny-chat@1", *at(service)]))
    assert same == "No difference in 1 situation.\n"
    shown = said(cli.invoke(app, ["strategy", "show", "tiny-chat@1", *at(service)]))
    assert "90 samples, generation 1\n" in shown
    assert "11 ms/step" in shown
    assert "runs now" not in shown
    assert "No situation is known" in said(cli.invoke(app, ["strategy", "show", "tiny-chat", *at(service)]))
    assert "no generation 7" in refused(cli.invoke(app, ["strategy", "show", "tiny-chat@7", *at(service)])).message
    error = refused(cli.invoke(app, ["strategy", "diff", "tiny-chat@7", "tiny-chat", *at(service)]))
    assert "no generation 7" in error.message


def test_pins_are_set_added_to_and_taken_back(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, tmp_path: Path
) -> None:
    binding = strategies.known["tiny-chat"].binding
    said(cli.invoke(app, ["strategy", "pin", "tiny-chat", "--decode-threads", "2", *at(service)]))
    said(cli.invoke(app, ["strategy", "pin", "tiny-chat", "--prefill-cpus", "4-7", "--chunk", "64", *at(service)]))
    pinned = strategies.dumps.pinned(binding)
    assert pinned is not None
    assert pinned.decode == SessionSpec(threads=2)
    assert pinned.prefill == SessionSpec(threads=4, cpus=(4, 5, 6, 7))
    assert pinned.chunk == 64
    file = tmp_path / "strategy.json"
    found = json.loads(said(cli.invoke(app, ["strategy", "show", "tiny-chat", "--json", *at(service)])))
    file.write_text(json.dumps(found[0]["running"]["strategy"]))
    text = said(cli.invoke(app, ["strategy", "pin", "tiny-chat", "--from", str(file), *at(service)]))
    assert "answers by 2 threads, prompts by 2 threads, prompts in pieces of 128, the model's own weights" in text
    said(cli.invoke(app, ["strategy", "pin", "tiny-chat", "--off", *at(service)]))
    assert strategies.dumps.pinned(binding) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "what is to be fixed"),
        (["--off", "--chunk", "64"], "--off and --chunk exclude each other"),
        (["--from", "a.json", "--decode-threads", "2"], "--from and --decode-threads exclude each other"),
        (["--from", "a.json", "--off"], "--from and --off exclude each other"),
        (["--decode-threads", "0"], "--decode-threads 0: at least 1"),
        (["--chunk", "-1"], "--chunk -1: at least 1"),
        (["--decode-threads", "4", "--decode-cpus", "0-1"], "--decode-cpus 0-1 cannot be"),
        (["--decode-cpus", "big"], "--decode-cpus big cannot be"),
        (["--prefill-cpus", ""], "--prefill-cpus  cannot be"),
    ],
)
def test_a_pin_that_says_nothing_or_too_much_is_refused(cli: CliRunner, options: list[str], said: str) -> None:
    error = refused(cli.invoke(app, ["strategy", "pin", "tiny-chat", *options]))
    assert isinstance(error, ConfigError)
    assert said in error.message
    assert error.hint


def test_a_model_that_nothing_is_known_of_is_named_with_those_that_there_are(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies
) -> None:
    error = refused(cli.invoke(app, ["strategy", "show", "zebra", *at(service)]))
    assert isinstance(error, ModelNotFound)
    assert "tiny-chat, tiny-embed" in error.hint
    assert said(cli.invoke(app, ["strategy", "show", "tttttt", *at(service)])).startswith("tiny-chat")


def test_a_named_service_that_is_not_there_is_not_replaced_by_files(cli: CliRunner) -> None:
    error = refused(cli.invoke(app, ["strategy", "show", "--url", "http://127.0.0.1:1"]))
    assert error.code == "service_unreachable"


def test_reset_looks_then_asks_and_wants_to_know_which(
    cli: CliRunner, service: FakeService, strategies: FakeStrategies, models: Path
) -> None:
    assert cli.invoke(app, ["strategy", "reset", "tiny-chat", *at(service)], input="n\n").exit_code == 1
    assert strategies.reread_models == []
    for where in (at(service), []):
        result = cli.invoke(app, ["strategy", "reset", "tiny-chat", "nosuch", *where], input="y\n")
        assert refused(result).code == ModelNotFound.code
        assert "Forget" not in result.output
    assert "which models" in refused(cli.invoke(app, ["strategy", "reset"])).message
    assert "exclude" in refused(cli.invoke(app, ["strategy", "reset", "tiny-chat", "--all"])).message


# --- without one ---


def test_without_a_service_its_files_are_shown(cli: CliRunner, own_home: Path, models: Path) -> None:
    assert "Nothing is learned yet" in said(cli.invoke(app, ["strategy", "show"]))
    (own_home / "state").mkdir()
    Dumps(own_home / "state").replace(learned_here(models))
    text = said(cli.invoke(app, ["strategy", "show", "tiny-chat"]))
    assert "11 ms/step" in text
    assert "runs now" not in text


def test_without_a_service_its_files_are_changed(
    cli: CliRunner, own_home: Path, models: Path, tmp_path: Path
) -> None:
    file, learned = tmp_path / "dump.json", learned_here(models)
    file.write_bytes(exported(learned, 1))
    text = said(cli.invoke(app, ["strategy", "import", str(file)]))
    assert "no service runs" in text
    dumps = Dumps(own_home / "state")
    found = dumps.load(learned.binding).learned
    assert found is not None
    assert found.entries[0].origin == "imported"
    said(cli.invoke(app, ["strategy", "pin", "tiny-chat", "--chunk", "64"]))
    pinned = dumps.pinned(learned.binding)
    assert pinned is not None
    assert (pinned.model, pinned.board, pinned.chunk) == ("tiny-chat", learned.binding.board, 64)
    said(cli.invoke(app, ["strategy", "pin", "tiny-chat", "--off"]))
    assert dumps.pinned(learned.binding) is None
    said(cli.invoke(app, ["strategy", "reset", "--all", "-y"]))
    assert dumps.load(learned.binding).learned is not None
    assert said(cli.invoke(app, ["strategy", "diff", "tiny-chat@1", str(file)])) == "No difference in 1 situation.\n"
    assert "generation 1\n" in said(cli.invoke(app, ["strategy", "show", "tiny-chat@1"]))
    refused(cli.invoke(app, ["strategy", "export", "tiny-chat", "-o", str(file)]))
    assert said(cli.invoke(app, ["strategy", "export", "tiny-chat@1", "-o", str(file)]))


def test_without_a_service_a_pin_that_this_machine_cannot_hold_is_refused(
    cli: CliRunner, own_home: Path, models: Path
) -> None:
    for option in (["--decode-threads", "200"], ["--decode-cpus", "900-901"], ["--variant", "nosuch"]):
        error = refused(cli.invoke(app, ["strategy", "pin", "tiny-chat", *option]))
        assert error.code == "pin_invalid"
        assert "on CPU " in error.hint
    assert Dumps(own_home / "state").pinned(learned_here(models).binding) is None


def test_files_are_bound_to_this_machine(cli: CliRunner, models: Path, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    file.write_bytes(exported(learned_here(models, ort_version="0.1", board="rock5b"), 1))
    error = refused(cli.invoke(app, ["strategy", "import", str(file)]))
    assert isinstance(error, RequestError)
    assert "board rock5b -> " in error.message
    assert "ONNX Runtime 0.1 -> " in error.message
    said(cli.invoke(app, ["strategy", "import", str(file), "--as-prior"]))


def test_a_trained_table_is_installed_from_its_file(
    cli: CliRunner, own_home: Path, models: Path, tmp_path: Path
) -> None:
    binding = learned_here(models).binding
    entry = Entry(part="decode", key="rows=9 cores=4 clock=0.9", chosen=FOUR, origin="trained")
    table = ModelTable(board=binding.board, model="tiny-chat", model_hash=binding.model_hash, entries=(entry,))
    trained = Trained(tables=(table,), proof=Proof(tasks=1, files=1, boards=(binding.board,), tolerance=0.02))
    file = tmp_path / "table.json"
    file.write_bytes(sealed(trained, schema=SCHEMA))
    text = said(cli.invoke(app, ["strategy", "import", str(file)]))
    assert "1 of its 1 situations were not known here" in text
    assert Dumps(own_home / "state").trained() == trained
    found = Dumps(own_home / "state").load(binding).learned
    assert found is not None
    assert found.entries == (entry,)
    assert "many boards" in refused(cli.invoke(app, ["strategy", "diff", str(file), "tiny-chat"])).message
    assert "exclude" in refused(cli.invoke(app, ["strategy", "reset", "--trained", "--all"])).message
    assert "taken away" in said(cli.invoke(app, ["strategy", "reset", "--trained", "-y"]))
    assert Dumps(own_home / "state").trained() is None
    left = Dumps(own_home / "state").load(binding).learned
    assert left is not None
    assert left.entries == ()
    assert "no trained table" in refused(cli.invoke(app, ["strategy", "reset", "--trained", "-y"])).message


def test_a_file_that_is_not_there_or_storage_that_refuses_is_an_error_in_two_lines(
    cli: CliRunner, own_home: Path, models: Path, tmp_path: Path
) -> None:
    assert "cannot be read" in refused(cli.invoke(app, ["strategy", "import", str(tmp_path / "none.json")])).message
    (own_home / "state").mkdir(parents=True)
    (own_home / "state" / "strategies").write_text("in the way")
    error = refused(cli.invoke(app, ["strategy", "pin", "tiny-chat", "--chunk", "64"]))
    assert (error.code, bool(error.hint)) == ("storage_refused", True)
