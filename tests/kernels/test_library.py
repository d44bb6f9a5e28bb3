"""The kernels in this process: loaded once, of the right version or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from magnitude.errors import EngineError
from magnitude.kernels.library import VERSION, KernelLibrary, Kernels
from magnitude.kernels.locate import VARIABLE


def compiled(folder: Path, source: str) -> Path:
    """A shared library of C source."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    (folder / "other.c").write_text(source)
    path = folder / "other.so"
    subprocess.run(["g++", "-xc", "-shared", "-fPIC", "-o", path, folder / "other.c"], check=True)
    return path


def test_it_packs_weights_for_operators(kernels_here: KernelLibrary) -> None:
    codes, scales = np.zeros((16, 2, 16), np.uint8), np.ones((16, 2), np.float32)
    correction = np.ones((5, 16), np.float32)
    plain = kernels_here.pack(4, codes, scales, None)
    corrected = kernels_here.pack(4, codes, scales, correction)
    assert plain.dtype == np.uint8
    assert len(corrected) > len(plain)
    room = np.zeros(len(plain), np.uint8)
    assert kernels_here.pack(4, codes, scales, None, room) is room
    assert room.tobytes() == plain.tobytes()


def test_what_it_refuses_is_an_error_of_the_engine(kernels_here: KernelLibrary) -> None:
    codes, scales = np.zeros((16, 2, 16), np.uint8), np.ones((16, 2), np.float32)
    with pytest.raises(EngineError, match="codes have") as caught:
        kernels_here.pack(4, codes[:3], scales, None)
    assert caught.value.code == "kernel_failed"
    with pytest.raises(EngineError, match="correction"):
        kernels_here.pack(4, codes, scales, np.ones((1, 16), np.float32))


def test_the_pool_s_width_changes_between_calls_and_ends_with_it(kernels_here: KernelLibrary) -> None:
    for threads in (3, 1, 2, 2):
        kernels_here.use_threads(threads)
        assert kernels_here.threads == threads
    kernels_here.stop_threads()
    assert kernels_here.threads == 1
    kernels_here.use_threads(2)
    assert kernels_here.threads == 2


def test_threads_that_cannot_have_their_cpu_are_counted_and_run_anyway(kernels_here: KernelLibrary) -> None:
    nowhere = 4000  # more than any machine has here
    assert kernels_here.use_threads(3, (0, nowhere, nowhere)) == 2
    assert kernels_here.threads == 3


def test_the_calling_thread_stays_where_it_is(kernels_here: KernelLibrary) -> None:
    before = os.sched_getaffinity(0)
    kernels_here.use_threads(2, (min(before), min(before)))
    assert os.sched_getaffinity(0) == before


def test_costs_are_counted_by_kind_of_operator(kernels_here: KernelLibrary) -> None:
    kernels_here.reset_costs()
    costs = kernels_here.costs()
    assert costs["product"].calls == 0
    assert kernels_here.instruction_set


def test_another_version_is_not_used(tmp_path: Path) -> None:
    path = compiled(tmp_path, f"int mk_version(void) {{ return {VERSION + 1}; }}")
    with pytest.raises(EngineError, match=f"is of version {VERSION + 1}") as caught:
        KernelLibrary(path)
    assert caught.value.code == "kernels_unusable"


def test_a_library_without_operators_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no operators"):
        KernelLibrary(compiled(tmp_path, f"int mk_version(void) {{ return {VERSION}; }}"))


def test_some_other_library_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be loaded"):
        KernelLibrary(compiled(tmp_path, "int other(void) { return 0; }"))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_library_that_is_cut_off_is_refused_and_not_loaded(
    kernels_here: KernelLibrary, tmp_path: Path, share: float
) -> None:
    content = kernels_here.path.read_bytes()
    cut = tmp_path / "cut.so"
    cut.write_bytes(content[: int(share * len(content))])
    with pytest.raises(EngineError, match="cut off"):
        KernelLibrary(cut)


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"no library\n" * 100)
    with pytest.raises(EngineError, match="no library"):
        KernelLibrary(other)


def test_a_library_is_loaded_once(kernels_here: KernelLibrary) -> None:
    found = Kernels()
    assert found.library() is found.library()
    assert found.why_not() == ""


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone.so"))
    assert "gone.so" in Kernels().why_not()
    with pytest.raises(EngineError, match="gone"):
        Kernels().library()


def test_a_damaged_library_is_refused_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"\x7fELF")
    monkeypatch.setenv(VARIABLE, str(damaged))
    found = Kernels()
    assert "cut off" in found.why_not() == found.why_not()


def test_a_process_that_does_not_ask_for_kernels_has_not_loaded_them(kernels_here: KernelLibrary) -> None:
    script = "import magnitude.kernels.library; print('kernels' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
