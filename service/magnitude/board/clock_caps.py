"""Upper limits of CPU clocks: set, read back, and put back whatever happens to us.

Before the first cap of a policy its limit is noted in the run folder (`cap_record`): without a note no cap. It is put
back by `restore` at a stop, by `restore_leftover` after a kill (the unit's ExecStopPost=), and by the next service.
A limit that is not ours any more is somebody's decision and stays: the policy is then left alone, and what was noted
is forgotten, until the limit is the hardware's again, which gives the policy back to us.

Nothing here raises for what the kernel or the storage answers; the outcome says it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from magnitude.board.boot import read_boot_id
from magnitude.board.cap_files import CapFiles, CapRefusal, Refused, write_limit
from magnitude.board.cap_record import CapRecord
from magnitude.board.cap_rules import CapEntry, Leave, Lift, Lower, RefusalKind, Refuse, Step, next_step
from magnitude.board.roots import HostRoots

log = logging.getLogger("magnitude.board")


class PolicyCap(msgspec.Struct, frozen=True, kw_only=True):
    """One policy after an attempt. `asked_khz` is what was asked of the kernel (a clock that the hardware has; None:
    nothing could be asked), `in_force_khz` the limit as read back (None: it cannot be read). Both differ without a
    refusal when the kernel or the firmware holds the clock lower."""

    asked_khz: int | None = None
    in_force_khz: int | None = None
    refusal: CapRefusal | None = None


class CapOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an attempt, by policy."""

    policies: dict[str, PolicyCap] = {}

    @property
    def in_force_khz(self) -> dict[str, int | None]:
        return {name: cap.in_force_khz for name, cap in self.policies.items()}

    @property
    def refused(self) -> dict[str, CapRefusal]:
        return {name: cap.refusal for name, cap in self.policies.items() if cap.refusal}


class ClockCaps:
    """The caps of one service; not thread-safe. Limits that an earlier run left are put back at once; `leftover` says
    what became of them.

    `run_folder` is emptied at boot at the latest and outlives a crash. `ask_permission` gets a file that refuses for
    want of permission; what was refused is tried again with the next `renew`.
    """

    def __init__(
        self,
        roots: HostRoots,
        run_folder: Path,
        *,
        boot_id: str | None = None,
        ask_permission: Callable[[Path], object] = lambda path: None,
        write: Callable[[Path, int], None] = write_limit,
    ) -> None:
        self._files = CapFiles(roots, write)
        self._record = CapRecord(run_folder, roots, read_boot_id(roots) if boot_id is None else boot_id)
        self._ask_permission = ask_permission
        self._wanted: dict[str, int | None] = {}
        self._yielded: set[str] = set()  # somebody else has set these
        self._entries = self._record.load()
        self.leftover = self.restore()
        if self.leftover.policies:
            refused = {name: refusal.detail for name, refusal in self.leftover.refused.items()}
            fields = {"limits_khz": self.leftover.in_force_khz, "refused": refused}
            log.info("clock limits of an earlier run were to be put back", extra={"fields": fields})

    def set(self, caps_khz: Mapping[str, int | None]) -> CapOutcome:
        """Limit policies, by their kernel's names, to so many kHz; None: as it was found. A cap never lifts a clock
        above what was found."""
        self._wanted |= caps_khz
        return self._attempt_all(caps_khz)

    def renew(self) -> CapOutcome:
        """Ask again for all that was asked for and is not in force: refused before, or undone by the kernel when a
        driver or a CPU came back. Reads some small files and writes nothing when all is well."""
        return self.set(dict(self._wanted))

    def restore(self) -> CapOutcome:
        """Put back every limit that we have lowered. What refuses stays noted for the next attempt."""
        self._wanted.clear()
        return self._attempt_all(dict.fromkeys(self._entries))

    def _attempt_all(self, caps_khz: Mapping[str, int | None]) -> CapOutcome:
        kernel_limits = bool(caps_khz) and self._files.kernel_limits()
        return CapOutcome(
            policies={name: self._attempt(name, khz, kernel_limits=kernel_limits) for name, khz in caps_khz.items()}
        )

    def _attempt(self, policy: str, khz: int | None, *, kernel_limits: bool) -> PolicyCap:
        asked: int | None = None
        try:
            found, step = self._look(policy, khz, kernel_limits=kernel_limits)
            if step == Refuse("not_ours") and policy in self._entries:
                # The kernel may have begun or ended to cool between two of our reads. That does not happen twice.
                found, step = self._look(policy, khz, kernel_limits=self._files.kernel_limits())
            match step:
                case Refuse(kind):
                    raise self._refusal(policy, found, kind)
                case Leave(forget):
                    asked = found
                    if forget:
                        self._yielded.discard(policy)
                        self._drop(policy)
                case Lift(asked):
                    self._files.set_limit(policy, asked)
                    self._drop(policy)
                case Lower(asked, original):
                    self._yielded.discard(policy)
                    self._lower(policy, asked, original)
            return PolicyCap(asked_khz=asked, in_force_khz=self._read_back(policy))
        except Refused as why:
            if why.refusal.kind == "permission":
                self._ask_permission(self._files.limit_path(policy))
            if why.refusal.kind == "gone":
                self._drop(policy)  # the kernel makes the policy anew, without our cap
            return PolicyCap(asked_khz=asked, in_force_khz=self._read_back(policy), refusal=why.refusal)

    def _look(self, policy: str, khz: int | None, *, kernel_limits: bool) -> tuple[int, Step]:
        """The limit in force and what to do about it. Raises `Refused`."""
        found = self._files.limit_khz(policy)
        step = next_step(
            khz,
            found,
            self._entries.get(policy),
            self._files.clock_range(policy),
            kernel_limits=kernel_limits,
            yielded=policy in self._yielded,
        )
        return found, step

    def _lower(self, policy: str, khz: int, original_khz: int) -> None:
        """Note, write, and note what became of it. Raises `Refused`."""
        before = self._entries.get(policy)
        old = before.ours_khz if before else ()
        why_not = self._note(policy, CapEntry(original_khz=original_khz, ours_khz=(khz, *old)))
        if why_not:
            self._put(policy, before)
            raise Refused(CapRefusal(kind="no_record", detail=f"{policy} is not limited: {why_not}"))
        try:
            self._files.set_limit(policy, khz)
        except Refused:
            self._note(policy, before)
            raise
        in_force = self._read_back(policy)
        if in_force is None or in_force == khz:
            # Noted already, beside older values of ours, which do no harm: one write less to a worn card.
            self._put(policy, CapEntry(original_khz=original_khz, ours_khz=(khz,)))
        else:
            self._note(policy, CapEntry(original_khz=original_khz, ours_khz=(khz, in_force)))

    def _refusal(self, policy: str, found_khz: int, kind: RefusalKind) -> Refused:
        if kind == "not_ours":
            self._drop(policy)
            self._yielded.add(policy)
            detail = f"somebody else has set {policy} to {found_khz} kHz, and so it stays"
        else:
            detail = f"the kernel holds {policy} at {found_khz} kHz for heat: what it would be without is not known"
        return Refused(CapRefusal(kind=kind, detail=detail))

    def _read_back(self, policy: str) -> int | None:
        try:
            return self._files.limit_khz(policy)
        except Refused:
            return None

    def _drop(self, policy: str) -> None:
        if policy in self._entries:
            self._note(policy, None)

    def _note(self, policy: str, entry: CapEntry | None) -> str:
        """Change the record. Why it could not be written; the caller decides whether that matters."""
        self._put(policy, entry)
        return self._record.save(self._entries)

    def _put(self, policy: str, entry: CapEntry | None) -> None:
        if entry is None:
            self._entries.pop(policy, None)
        else:
            self._entries[policy] = entry


def restore_leftover(
    run_folder: Path,
    roots: HostRoots,
    *,
    ask_permission: Callable[[Path], object] = lambda path: None,
    write: Callable[[Path, int], None] = write_limit,
) -> CapOutcome:
    """Put back the limits that a service which is gone has left, by its record in `run_folder`. For ExecStopPost=:
    quick, and never raises. Empty when there is nothing to do."""
    return ClockCaps(roots, run_folder, ask_permission=ask_permission, write=write).leftover
