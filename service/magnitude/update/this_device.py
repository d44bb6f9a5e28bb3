"""The check and its consequences on the device that this runs on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from magnitude.cli.client import ServiceClient, candidates, connect
from magnitude.doctor import DoctorContext, Finding
from magnitude.doctor.checks import boot_slot, kernel_options, onnx_runtime
from magnitude.errors import MagnitudeError
from magnitude.intake.terms import KEEP
from magnitude.models.catalogue import BrokenModel, scan
from magnitude.models.description import ModelDescription
from magnitude.units.host import run_quietly
from magnitude.update.boot_check import CHECK, STEADY_S, BootReport, Surroundings, check_boot
from magnitude.update.terms import Verdict

# Models that come with an image, served unless the user has one of the same name.
EMBEDDED = Path("/usr/share/magnitude/models")
# Programs that an image adds to the check, each for one thing that only it knows (a firmware's version).
FURTHER_CHECKS = Path("/usr/lib/magnitude/boot-checks.d")
FURTHER_S = 60.0
# For an answer of eight tokens. A service that has not given it by then is not well, and the check has an end.
ANSWER_S = 120.0


def check_this_boot(
    context: DoctorContext,
    *,
    within_s: float,
    told: Callable[[str], None],
    url: str | None = None,
    api_key: str | None = None,
    steady_s: float = STEADY_S,
    further: Path = FURTHER_CHECKS,
    embedded: Path = EMBEDDED,
) -> BootReport:
    """The check on this device: of the running service, and of and by what the image brings."""
    models = usable_models(context.models_folder, embedded)
    if not models and url is None:
        report = _without_model(context)
    else:
        around = Surroundings(
            connect=lambda: _reach(context, url, api_key),
            models=models,
            clock=context.monotonic,
            sleep=time.sleep,
            steady_s=steady_s,
            told=told,
        )
        report = check_boot(around, within_s=within_s)
    # Told and no more: a kernel without these works, with less to go by.
    kernel = msgspec.structs.replace(kernel_options.check(context), check=CHECK)
    # A root that is not the slot that was started: the mark would go to the other one.
    slot = msgspec.structs.replace(boot_slot.check(context), check=CHECK)
    added = [kernel, slot, *broken_models(embedded), *further_checks(further)]
    wrong = [finding for finding in added if finding.level == "error"]
    verdict = report.verdict
    if verdict.passed and wrong:
        verdict = Verdict(passed=False, reason=f"{wrong[0].title}: {wrong[0].detail}")
    return msgspec.structs.replace(report, verdict=verdict, findings=[*report.findings, *added])


def usable_models(folder: Path, embedded: Path = EMBEDDED) -> dict[str, ModelDescription]:
    """Models by name; the user's own take the place of embedded ones."""
    found = [*scan(embedded), *scan(folder)]
    return {entry.name: entry for entry in found if not isinstance(entry, BrokenModel)}


def broken_models(embedded: Path) -> list[Finding]:
    """Models that come with the image and cannot be used: a fault of the image, whatever else is served."""
    return [
        Finding(
            check=CHECK,
            level="error",
            title=f"The image's model {entry.name} cannot be used",
            detail=entry.message,
            advice=entry.hint,
        )
        for entry in scan(embedded)
        if isinstance(entry, BrokenModel)
    ]


def further_checks(folder: Path) -> list[Finding]:
    """What the executables in `folder` say, in the order of their names. Status 0 passes; the last line is shown."""
    findings = []
    try:
        programs = sorted(path for path in folder.iterdir() if path.is_file() and os.access(path, os.X_OK))
    except OSError:
        return []
    for program in programs:
        try:
            done = subprocess.run(
                [program], stdin=subprocess.DEVNULL, capture_output=True, timeout=FURTHER_S, check=False
            )
            said, status = (done.stdout + done.stderr).decode("utf-8", "replace"), done.returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            said, status = str(error), 1
        last = said.strip().splitlines()[-1:] or [f"status {status}"]
        findings.append(
            Finding(
                check=CHECK,
                level="error" if status else "ok",
                title=f"{program.name} has {'failed' if status else 'passed'}",
                detail=last[0],
            )
        )
    return findings


def _without_model(context: DoctorContext) -> BootReport:
    """A device without a model cannot infer, which is no fault of the system: what would infer is looked at."""
    started_s = context.monotonic()
    runtime = msgspec.structs.replace(onnx_runtime.check(context), check=CHECK)
    none = Finding(
        check=CHECK,
        level="notice",
        title="There is no model on this device, so nothing could be inferred",
        detail=str(context.models_folder),
        advice="`magnitude import SOURCE` imports one",
    )
    wrong = runtime.level == "error"
    return BootReport(
        verdict=Verdict(passed=not wrong, reason=runtime.title if wrong else ""),
        findings=[none, runtime],
        took_s=round(context.monotonic() - started_s, 1),
    )


@contextlib.contextmanager
def _reach(context: DoctorContext, url: str | None, api_key: str | None) -> Iterator[ServiceClient]:
    """A client of the running service. Raises `MagnitudeError`."""
    with connect(candidates(context.settings, context.paths, url), api_key) as client:
        client.http.timeout = ANSWER_S
        # What is asked here is of no use to the next request.
        client.http.headers[KEEP] = "no"
        yield client


def reboot_by(command: tuple[str, ...]) -> Callable[[], None]:
    """A function that reboots the device by `command`. It raises `MagnitudeError` when that is refused."""

    def reboot() -> None:
        failure = run_quietly(command)
        if failure is not None:
            raise MagnitudeError(
                f"The device could not be rebooted: {failure}", hint="Reboot it by hand; the boot loader then goes on"
            )

    return reboot
