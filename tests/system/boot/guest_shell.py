"""Look into a guest by hand: restores one that serves, and runs what is typed in it, a command a line.

    sudo .venv/bin/python tests/system/boot/guest_shell.py [serving | without_controller]

The guest is gone at the end of the input (Ctrl-D); what it wrote is gone with it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from guest_session import KERNEL_OPTIONS, Guests, build_image


def main(state: str) -> None:
    with tempfile.TemporaryDirectory() as name, Guests(build_image(), Path(name)).restored(state) as guest:
        print("A restored guest: it thinks that it is 1970. Commands run as root, one a line.")
        while True:
            try:
                command = input("guest# ")
            except EOFError:
                return
            print(guest.run(command).output, end="")


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else "serving"
    if chosen not in KERNEL_OPTIONS:
        sys.exit(f"unknown state {chosen}; there are: {', '.join(KERNEL_OPTIONS)}")
    main(chosen)
