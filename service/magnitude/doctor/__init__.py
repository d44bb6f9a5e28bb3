"""Self-examination: one check a module in `checks/`, found by the package, each with its finding and its advice."""

from magnitude.doctor.context import DoctorContext, make_context
from magnitude.doctor.finding import Finding, Level, exit_status
from magnitude.doctor.running import run_checks

__all__ = ["DoctorContext", "Finding", "Level", "exit_status", "make_context", "run_checks"]
