"""The plugin that counts for `scripts/bench instructions`, in a fake emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.contender import PROJECT
from bench.instructions import Counts, parse_counts

ASSEMBLER, EXTRACT = "aarch64-linux-gnu-as", "aarch64-linux-gnu-objcopy"
MISSING = [tool for tool in ("cc", ASSEMBLER, EXTRACT) if shutil.which(tool) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)} (scripts/system-test-setup)")

NOTHING = Counts(1, 0, 0, 0, 0)
MEMORY = Counts(1, 1, 0, 0, 0)
VECTOR = Counts(1, 0, 1, 0, 0)
DOT = Counts(1, 0, 1, 1, 0)
MATRIX = Counts(1, 0, 1, 0, 1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("count")
    plugin = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", "count.so", str(PROJECT / "bench/emulated/count.c")]
    emulator = ["cc", "-rdynamic", "-o", "fake_qemu", str(Path(__file__).with_name("fake_qemu.c")), "-ldl"]
    for command in (plugin, emulator):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def count(built: Path, code: str) -> dict[int, Counts]:
    """What the plugin says after the block of assembly was run three times."""
    source = f".arch armv8.6-a+i8mm+dotprod\n{code}\n"
    subprocess.run([ASSEMBLER, "-o", "code.o", "-"], cwd=built, input=source, text=True, check=True)
    subprocess.run([EXTRACT, "-O", "binary", "-j", ".text", "code.o", "code"], cwd=built, check=True)
    with (built / "code").open("rb") as stream:
        subprocess.run(["./fake_qemu", "./count.so", "out=counts"], cwd=built, stdin=stream, check=True)
    return parse_counts((built / "counts").read_text())


def thrice(*counts: Counts) -> Counts:
    return Counts(
        all=3 * sum(each.all for each in counts),
        memory=3 * sum(each.memory for each in counts),
        vector=3 * sum(each.vector for each in counts),
        dot=3 * sum(each.dot for each in counts),
        matrix=3 * sum(each.matrix for each in counts),
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("add x0, x1, x2", NOTHING),
        ("b .", NOTHING),
        ("madd x0, x1, x2, x3", NOTHING),
        ("ldr x0, [x1]", MEMORY),
        ("stp x0, x1, [x2, #16]!", MEMORY),
        ("ldr q0, [x1]", MEMORY),
        ("ld1 {v0.16b, v1.16b}, [x0]", MEMORY),
        ("prfm pldl1keep, [x0]", MEMORY),
        ("fmla v0.4s, v1.4s, v2.4s", VECTOR),
        ("fmul s0, s1, s2", VECTOR),
        ("mla v0.8h, v1.8h, v2.8h", VECTOR),
        ("ushr v0.16b, v1.16b, #4", VECTOR),
        ("sdot v0.4s, v1.16b, v2.16b", DOT),
        ("sdot v0.2s, v1.8b, v2.8b", DOT),
        ("udot v31.4s, v30.16b, v29.16b", DOT),
        ("sdot v0.4s, v1.16b, v2.4b[3]", DOT),
        ("udot v0.4s, v1.16b, v31.4b[1]", DOT),
        ("usdot v0.4s, v1.16b, v2.16b", DOT),
        ("usdot v0.4s, v1.16b, v2.4b[2]", DOT),
        ("sudot v0.4s, v1.16b, v2.4b[0]", DOT),
        ("smmla v0.4s, v1.16b, v2.16b", MATRIX),
        ("ummla v0.4s, v1.16b, v2.16b", MATRIX),
        ("usmmla v31.4s, v30.16b, v29.16b", MATRIX),
    ],
)
def test_an_instruction_is_counted_by_its_kind_each_time_it_runs(built: Path, code: str, kind: Counts) -> None:
    assert count(built, code) == {7: thrice(kind)}


def test_a_block_is_the_sum_of_its_instructions(built: Path) -> None:
    code = "ldr q0, [x0]\nsdot v1.4s, v0.16b, v2.16b\nsmmla v3.4s, v0.16b, v2.16b\nsub x1, x1, #1\ncbnz x1, .-16"
    assert count(built, code)[7] == thrice(MEMORY, DOT, MATRIX, NOTHING, NOTHING)
