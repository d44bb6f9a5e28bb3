"""With what packages and images leave out of Python's packages, everything of the service still works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from image.debian.left_out import trim_packages

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "models"))

import tiny_gguf
from tiny_sources import decoder_folder, graph

ROOT = Path(__file__).resolve().parent.parent.parent
SERVICE = ROOT / "service"
GOLDEN = ROOT / "tests/golden"
# What needs packages that no device has: training strategies, drawing reports.
AT_A_DESK = ("magnitude.training",)
IMPORT_ALL = f"""
import importlib, pkgutil, magnitude
names = [found.name for found in pkgutil.walk_packages(magnitude.__path__, "magnitude.")]
chosen = [name for name in names if not name.startswith({AT_A_DESK!r}) and not name.endswith("__main__")]
assert len(chosen) > 200, chosen
for name in chosen:
    importlib.import_module(name)
"""
COMMAND = "from magnitude.cli.main import run; run()"
TRACEBACK = """
from rich.console import Console
try:
    1 / 0
except ZeroDivisionError:
    Console(force_terminal=True).print_exception()
"""


def a_folder(target: Path) -> Path:
    return decoder_folder(GOLDEN, target)


def a_gguf(target: Path) -> Path:
    return tiny_gguf.write_whole(target.with_suffix(".gguf"))


def a_graph(target: Path) -> Path:
    path = target.with_suffix(".onnx")
    path.write_bytes(graph().SerializeToString())
    return path


SOURCES: dict[str, Callable[[Path], Path]] = {"safetensors": a_folder, "gguf": a_gguf, "onnx": a_graph}


def required(name: str, extra: str = "", found: dict[str, Distribution] | None = None) -> dict[str, Distribution]:
    """The distributions that `name` needs in this Python, and itself."""
    found = {} if found is None else found
    if name in found:
        return found
    found[name] = one = distribution(name)
    for text in one.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            required(canonicalize_name(requirement.name), found=found)
    return found


def files_of(one: Distribution) -> Iterator[tuple[Path, Path]]:
    """Where each file of a distribution is, and its place below the folder of packages."""
    for file in one.files or ():
        source = Path(str(one.locate_file(file)))
        if ".." not in file.parts and source.is_file() and source.suffix != ".pyc":
            yield source, Path(file)


class Device:
    """An environment with the service and the packages that a device has, trimmed, and nothing else."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self._python = folder / "bin/python"
        self._compiled = folder / "compiled"
        (self.site,) = folder.glob("lib/python3.*/site-packages")
        for name, one in required("magnitude", "import").items():
            if name != "magnitude":
                for source, place in files_of(one):
                    _link(source, self.site / place)
        (self.site / "service.pth").write_text(f"{SERVICE}\n")
        trim_packages(self.site, image=True)

    def run(self, home: Path, code: str, *words: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPYCACHEPREFIX": str(self._compiled),
            "MAGNITUDE_HOME": str(home),
            "COLUMNS": "200",
        }
        done = subprocess.run(
            [self._python, "-c", code, *words],
            env=environment, cwd=home, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return Device(tmp_path_factory.mktemp("device") / "environment")


def test_the_run_times_library_for_c_is_left_out_and_what_python_loads_is_there(device: Device) -> None:
    """Python's module has all of it inside: the other one is 27 MB that nobody opens."""
    names = [path.name for path in (device.site / "onnxruntime/capi").iterdir()]
    assert [name for name in names if name.startswith("libonnxruntime.so")] == []
    assert any(name.startswith("onnxruntime_pybind11_state") for name in names)


def test_the_whole_service_can_be_imported(device: Device, tmp_path: Path) -> None:
    device.run(tmp_path, IMPORT_ALL)


def test_help_and_a_traceback_in_colour_need_nothing_that_is_left_out(device: Device, tmp_path: Path) -> None:
    assert "import" in device.run(tmp_path, COMMAND, "--help")
    assert "ZeroDivisionError" in device.run(tmp_path, TRACEBACK)


@pytest.mark.parametrize("kind", SOURCES)
def test_models_of_each_kind_are_imported_and_checked(device: Device, tmp_path: Path, kind: str) -> None:
    device.run(tmp_path, COMMAND, "import", str(SOURCES[kind](tmp_path / "source")), "--name", "mine")
    assert (tmp_path / "models/mine/manifest.json").is_file()


def test_what_nobody_imports_at_run_time_and_where_it_was_built_is_left_out(tmp_path: Path) -> None:
    gone = [
        "bin/f2py",
        "numpy/_core/tests/test_a.py",
        "onnxruntime/transformers/a.py",
        "onnxruntime/capi/libonnxruntime.so.1.32.0",
        "pygments/lexers/ada.py",
        "a-1.dist-info/direct_url.json",
        "a/b.pyi",
    ]
    stays = [
        "numpy/_core/numeric.py",
        "onnxruntime/capi/a.so",
        "pygments/lexers/python.py",
        "a-1.dist-info/METADATA",
        "a/tests.py",
    ]
    for name in [*gone, *stays]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    trim_packages(tmp_path, image=True)
    assert [name for name in gone if (tmp_path / name).exists()] == []
    assert [name for name in stays if not (tmp_path / name).exists()] == []


def test_a_folder_that_another_pattern_has_taken_already_is_no_error(tmp_path: Path) -> None:
    inner = tmp_path / "onnx/backend/test/tests/include"
    inner.mkdir(parents=True)
    (inner / "a.pyi").touch()
    trim_packages(tmp_path, image=True)
    assert not (tmp_path / "onnx/backend").exists()


@pytest.mark.parametrize("image", [False, True])
def test_units_of_images_are_in_images_alone(tmp_path: Path, image: bool) -> None:
    units = tmp_path / "magnitude/systemd"
    for name in ("magnitude.service", "image/system.conf.d/50-magnitude-watchdog.conf"):
        (units / name).parent.mkdir(parents=True, exist_ok=True)
        (units / name).touch()
    trim_packages(tmp_path, image=image)
    assert (units / "image").exists() == image
    assert (units / "magnitude.service").exists()
