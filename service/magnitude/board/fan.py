"""What blows."""

from __future__ import annotations

from pathlib import Path

from magnitude.board.kernel_file import KernelFile
from magnitude.board.roots import HostRoots, read_int, read_text
from magnitude.board.sensors import folders
from magnitude.board.snapshot import Fan


class FanReader:
    """A cooling device, with the tachometer that belongs to it where there is one; or a tachometer alone."""

    def __init__(self, name: str, state: Path | None, tachometer: Path | None) -> None:
        self.key = f"fan:{state or tachometer}"
        self._name = name
        self._state = KernelFile(state / "cur_state") if state is not None else None
        self._max_state = read_int(state / "max_state") if state is not None else None
        self._rpm = KernelFile(tachometer) if tachometer is not None else None

    def read(self) -> Fan:
        return Fan(
            name=self._name,
            state=self._state.try_int() if self._state is not None else None,
            max_state=self._max_state,
            rpm=self._rpm.try_int() if self._rpm is not None else None,
        )

    def close(self) -> None:
        for file in (self._state, self._rpm):
            if file is not None:
                file.close()


def find_fans(roots: HostRoots) -> tuple[FanReader, ...]:
    """Cooling devices by their type (`pwm-fan`, `gpio-fan`, `fan0`), and what hwmon measures.

    Which tachometer belongs to which cooling device is told by no file. One of each belong together.
    """
    cooling = [
        (name, folder)
        for folder in folders(roots.sys / "class/thermal", "cooling_device")
        if "fan" in (name := (read_text(folder / "type") or "")).lower()
    ]
    measured = [
        (read_text(folder / "name") or folder.name, file)
        for folder in folders(roots.sys / "class/hwmon", "hwmon")
        for file in folders(folder, "fan")
        if file.name.endswith("_input")
    ]
    if len(cooling) == len(measured) == 1:
        return (FanReader(cooling[0][0], cooling[0][1], measured[0][1]),)
    return (
        *(FanReader(name, folder, None) for name, folder in cooling),
        *(FanReader(name, None, file) for name, file in measured),
    )
