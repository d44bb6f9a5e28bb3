"""A system that cannot mount what it needs starts anew, where nobody could log in to put it right."""

from __future__ import annotations

from pathlib import Path

import pytest
from nspawn import Container

from magnitude.units.shipped import shipped_folder

pytestmark = pytest.mark.system

NAME = "emergency.service.d/50-magnitude.conf"
HELPER = "magnitude-stranded"
# Two starts of a system without the service, with a margin of ten.
REBOOT_S = 60.0


def test_a_system_in_emergency_mode_reboots_by_itself(root: Path) -> None:
    image = shipped_folder() / "image"
    helper = (image / "libexec" / HELPER).read_text()
    assert "\npause_s=120\n" in helper
    with Container(root) as board:
        board.write(f"/usr/local/lib/systemd/system/{NAME}", (image / NAME).read_text())
        board.write(f"/usr/lib/magnitude/{HELPER}", helper.replace("pause_s=120", "pause_s=1"))
        board.run("chmod", "+x", f"/usr/lib/magnitude/{HELPER}")
        board.run("systemctl", "daemon-reload")
        leader = board.leader
        # As systemd does itself when a mount of local-fs.target fails.
        board.run("systemctl", "--no-block", "--job-mode=replace-irreversibly", "start", "emergency.target")
        board.wait_reboot(REBOOT_S)
        assert board.leader != leader
        assert board.show("emergency.service", "ActiveState") == "inactive"
