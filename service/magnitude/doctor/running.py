"""Finding the checks and running them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType

import msgspec

from magnitude.doctor import checks
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

Check = Callable[[DoctorContext], Finding]


def find_checks(package: ModuleType = checks) -> Iterator[tuple[str, Check]]:
    """Name and `check` function of every module of the package, in the order of the names."""
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        yield module.name, importlib.import_module(f"{package.__name__}.{module.name}").check


def run_checks(context: DoctorContext, package: ModuleType = checks) -> list[Finding]:
    """Every check's finding. One that fails itself is reported and does not stop the others."""
    return [_run(name, check, context) for name, check in find_checks(package)]


def _run(name: str, check: Check, context: DoctorContext) -> Finding:
    try:
        finding = check(context)
    except Exception as error:
        finding = Finding(
            level="warning",
            title=f"The check {name} could not be made",
            detail=f"{type(error).__name__}: {error}",
            advice="This is a fault of the check itself: please report it with this text",
        )
    return msgspec.structs.replace(finding, check=name)
