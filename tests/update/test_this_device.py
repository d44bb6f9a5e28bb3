from __future__ import annotations

from pathlib import Path

import pytest

from magnitude.board import HostRoots
from magnitude.config import Settings
from magnitude.doctor import DoctorContext
from magnitude.doctor.checks.boot_slot import OLDEST_EEPROM_S
from magnitude.errors import MagnitudeError
from magnitude.paths import find_paths
from magnitude.update.this_device import check_this_boot, further_checks, reboot_by, usable_models
from tests.models.test_previous import model


def program(folder: Path, name: str, text: str, mode: int = 0o755) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(mode)


def test_an_image_may_add_checks_which_are_told_by_their_last_line(tmp_path: Path) -> None:
    folder = tmp_path / "checks"
    program(folder, "20-firmware", "echo looking; echo the boot loader is too old >&2; exit 1")
    program(folder, "10-fan", "echo it turns")
    program(folder, "README", "exit 1", mode=0o644)
    found = [(finding.title, finding.level, finding.detail) for finding in further_checks(folder)]
    assert found == [
        ("10-fan has passed", "ok", "it turns"),
        ("20-firmware has failed", "error", "the boot loader is too old"),
    ]
    assert further_checks(tmp_path / "absent") == []


def test_an_added_check_that_fails_fails_the_whole(tmp_path: Path) -> None:
    folder = tmp_path / "checks"
    program(folder, "firmware", "echo too old; exit 1")
    report = check_this_boot(context(tmp_path), within_s=1, told=lambda line: None, further=folder)
    assert not report.verdict.passed
    assert report.verdict.reason == "firmware has failed: too old"


def test_a_kernel_that_does_not_tell_of_stalls_is_told_and_fails_nothing(tmp_path: Path) -> None:
    """Neither pressure files nor a memory controller, as on a kernel without the options for them."""
    report = check_this_boot(context(tmp_path), within_s=1, told=lambda line: None, further=tmp_path / "none")
    assert report.verdict.passed, report
    assert "psi=1" in " ".join(finding.advice for finding in report.findings)


def test_an_image_whose_model_cannot_be_used_has_failed_though_another_model_is_served_or_none(
    tmp_path: Path,
) -> None:
    embedded = tmp_path / "embedded"
    chat = model(embedded / "chat", b"of the image")
    (chat / "model.onnx").write_bytes(b"cut")
    report = check_this_boot(
        context(tmp_path), within_s=1, told=lambda line: None, further=tmp_path / "none", embedded=embedded
    )
    assert not report.verdict.passed
    assert report.verdict.reason.startswith("The image's model chat cannot be used")


@pytest.mark.parametrize(("root", "passes"), [("PARTUUID=6d61676e-02", True), ("PARTUUID=6d61676e-03", False)])
def test_a_root_that_is_not_the_slot_that_was_started_fails_the_whole(
    tmp_path: Path, root: str, passes: bool
) -> None:
    around = context(tmp_path)
    (around.roots.proc / "cmdline").parent.mkdir(parents=True)
    (around.roots.proc / "cmdline").write_text(f"root={root} rauc.slot=A\n")
    report = check_this_boot(around, within_s=1, told=lambda line: None, further=tmp_path / "none")
    assert report.verdict.passed is passes, report


def test_an_old_boot_eeprom_is_told_and_fails_nothing(tmp_path: Path) -> None:
    """The other slot would start through the same one."""
    around = context(tmp_path)
    tree = around.roots.proc / "device-tree"
    (tree / "chosen/bootloader").mkdir(parents=True)
    (tree / "compatible").write_bytes(b"raspberrypi,5-model-b\0brcm,bcm2712\0")
    (tree / "chosen/bootloader/build-timestamp").write_bytes((OLDEST_EEPROM_S - 1).to_bytes(4, "big"))
    (around.roots.proc / "cmdline").write_text("root=PARTUUID=6d61676e-02 rauc.slot=A\n")
    report = check_this_boot(around, within_s=1, told=lambda line: None, further=tmp_path / "none")
    assert report.verdict.passed
    assert [finding.level for finding in report.findings if "EEPROM" in finding.title] == ["warning"]


def context(folder: Path) -> DoctorContext:
    """A device without models, on a board that tells nothing."""
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    return DoctorContext(
        settings=Settings(),
        paths=find_paths({"MAGNITUDE_HOME": str(folder / "home")}),
        roots=HostRoots.under(empty),
    )


def test_the_users_model_takes_the_place_of_an_embedded_one(tmp_path: Path) -> None:
    model(tmp_path / "embedded/chat", b"of the image")
    model(tmp_path / "embedded/other", b"of the image")
    model(tmp_path / "own/chat", b"of the user")
    (tmp_path / "own/broken").mkdir()
    found = usable_models(tmp_path / "own", tmp_path / "embedded")
    assert {name: Path(one.folder).parent.name for name, one in found.items()} == {"chat": "own", "other": "embedded"}


def test_a_reboot_that_is_refused_is_an_error() -> None:
    with pytest.raises(MagnitudeError, match="could not be rebooted"):
        reboot_by(("false",))()
