from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_trees import look

from kernel_trees import write_tree
from magnitude.board.firmware import HINT, FirmwareReader, parse_throttled
from magnitude.board.snapshot import Firmware, FirmwareFlags

FINE = FirmwareFlags()
FILE = "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"


@pytest.mark.parametrize(
    ("word", "now", "since_boot"),
    [
        (
            "0x50005",
            FirmwareFlags(under_voltage=True, throttled=True),
            FirmwareFlags(under_voltage=True, throttled=True),
        ),
        ("0x50000", FINE, FirmwareFlags(under_voltage=True, throttled=True)),
        ("0x80008", FirmwareFlags(soft_limit=True), FirmwareFlags(soft_limit=True)),
        ("0xE0000", FINE, FirmwareFlags(clock_capped=True, throttled=True, soft_limit=True)),
        ("0x0", FINE, FINE),
    ],
)
def test_now_and_since_boot_are_told_apart(word: str, now: FirmwareFlags, since_boot: FirmwareFlags) -> None:
    found = parse_throttled(f"throttled={word}\n")
    assert (found.now, found.since_boot) == (now, since_boot)


@pytest.mark.parametrize(
    "text",
    ["", "VCHI initialization failed", "throttled=", "throttled=0x", "0", "error=1 error_msg=0x0", "throttled=0xzz"],
)
def test_an_error_is_not_the_word_zero(text: str) -> None:
    with pytest.raises(ValueError, match="no flags"):
        parse_throttled(text)


@given(st.integers(0, 0xFFFFFFFF))
def test_every_word_parses_to_its_own_bits(word: int) -> None:
    found = parse_throttled(f"throttled={word:#x}")
    assert found.now is not None
    assert found.since_boot is not None
    assert (found.now.under_voltage, found.now.soft_limit) == (bool(word & 1), bool(word & 8))
    assert found.since_boot.throttled == bool(word & 1 << 18)


def script(folder: Path, text: str) -> tuple[str, ...]:
    """A command that does that."""
    file = folder / "vcgencmd.py"
    file.write_text(text)
    return (sys.executable, "-S", str(file), "get_throttled")


def test_the_command_is_asked_without_the_argument_that_clears_the_history(tmp_path: Path) -> None:
    text = "import sys; print('throttled=0x50005' if sys.argv[1:] == ['get_throttled'] else 'throttled=0x0')"
    found = FirmwareReader(write_tree(tmp_path, {}), command=script(tmp_path, text)).read()
    assert found.now is not None
    assert (found.now.under_voltage, found.now.soft_limit) == (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "print('VCHI initialization failed')",
        "import sys; print('throttled=0x0'); sys.exit(1)",
        "pass",
        "import sys; sys.stdout.buffer.write(bytes([255, 254]))",
    ],
)
def test_a_command_that_fails_is_unknown_with_a_hint(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = FirmwareReader(write_tree(tmp_path, {}), command=script(tmp_path, text))
    with caplog.at_level(logging.INFO):
        found = [reader.read() for _ in range(3)]
    assert all((each.now, each.since_boot, each.hint) == (None, None, HINT) for each in found)
    assert len(caplog.records) == 1


def test_missing_command_and_device_are_unknown(tmp_path: Path) -> None:
    reader = FirmwareReader(
        write_tree(tmp_path, {}), mailbox=tmp_path / "vcio", command=(str(tmp_path / "vcgencmd"), "get_throttled")
    )
    assert reader.read().now is None


def test_a_device_that_is_no_mailbox_is_passed_over_for_the_command(tmp_path: Path) -> None:
    mailbox = tmp_path / "vcio"
    mailbox.write_bytes(b"")
    reader = FirmwareReader(
        write_tree(tmp_path, {}), mailbox=mailbox, command=script(tmp_path, "print('throttled=0x80008')")
    )
    now = reader.read().now
    assert now is not None
    assert now.soft_limit


def test_the_kernels_file_is_read_and_its_history_kept(tmp_path: Path) -> None:
    roots = write_tree(tmp_path, {FILE: "50005"})
    reader = FirmwareReader(roots)
    first = reader.read()
    assert first.now is not None
    assert first.now.under_voltage
    write_tree(tmp_path, {FILE: "0"})
    later = reader.read()
    # The kernel's driver has the firmware forget every two seconds; what was seen has happened all the same.
    assert (later.now, later.since_boot) == (FINE, FirmwareFlags(under_voltage=True, throttled=True))


def test_only_a_raspberry_pi_is_asked(tmp_path: Path) -> None:
    other = write_tree(tmp_path, {"proc/device-tree/compatible": "radxa,rock-5b\0rockchip,rk3588\0"})
    assert look(other).firmware == Firmware()
    pi = write_tree(tmp_path, {"proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0"})
    assert look(pi).firmware == Firmware(hint=HINT)
    now = look(write_tree(tmp_path, {FILE: "50005"})).firmware.now
    assert now is not None
    assert now.under_voltage
