"""What runs at boot on the layer's image: enabled, with its programs installed, and nobody else doing the same."""

from __future__ import annotations

import configparser
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from magnitude.firstboot.host_keys import KEY_NAME
from yocto.checks.layer import CHECKOUT, LAYER, read_layer

SERVICE = CHECKOUT / "service/magnitude"
UNITS = CHECKOUT / "systemd"
DISTRO = (LAYER / "conf/distro/magnitude-os.conf").read_text()
RAUC_APPEND = (LAYER / "dynamic-layers/rauc/recipes-core/rauc/rauc_%.bbappend").read_text()

# Program → package that has it, in this series. Where nothing is said about a package it comes with systemd, which
# the distribution is made of.
PACKAGES = {
    "fw_printenv": "libubootenv-bin",
    "fw_setenv": "libubootenv-bin",
    "ip": "iproute2-ip",
    "iw": "iw",
    "mount": "util-linux-mount",
    "partx": "util-linux-partx",
    "rauc": "rauc",
    "sfdisk": "util-linux-sfdisk",
    "ssh-keygen": "openssh-keygen",
    "sshd": "openssh-sshd",
    "systemctl": "systemd",
    "systemd-growfs": "systemd",
}
# What a call of a program looks like in the code: the first word of a tuple of words, or what is looked up.
CALLS = re.compile(
    r"""(?:run\(\(|_output\(|which\(|command: Sequence\[str\] = \(|^REBOOT\w* = \()\s*"([\w-]+)\"""", re.M
)


def called() -> dict[str, str]:
    """Program → file, of all that first boot and updates call."""
    files = [*SERVICE.glob("firstboot/*.py"), *SERVICE.glob("update/*.py"), SERVICE / "cli/update.py"]
    return {name: path.name for path in files for name in CALLS.findall(path.read_text())}


@pytest.mark.parametrize(("program", "file"), sorted(called().items()))
def test_a_program_that_the_code_calls_is_in_the_image(program: str, file: str) -> None:
    assert program in PACKAGES, f"{file} calls {program}: name its package, and install it"
    layer = read_layer()
    installed = set(layer.recipe("packagegroup-magnitude").words("RDEPENDS")) | {"systemd"}
    # Every machine's root slot has the boot script's settings.
    assert "magnitude-boot" in (LAYER / "conf/distro/include/magnitude-machines.inc").read_text()
    installed |= set(layer.recipe("magnitude-boot").words("RDEPENDS"))
    updates = LAYER / "dynamic-layers/rauc/recipes-core/packagegroups/packagegroup-magnitude.bbappend"
    installed |= set(re.findall(r"' (rauc)'", updates.read_text()))
    assert PACKAGES[program] in installed


def test_the_calls_are_found() -> None:
    assert {"ssh-keygen", "mount", "fw_setenv", "ip", "iw", "sfdisk", "partx", "rauc"} <= set(called())


def presets() -> list[tuple[str, str]]:
    """(enable or disable, pattern) in the order in which systemd reads them: by the files' names."""
    files = [
        *UNITS.glob("system-preset/*.preset"),
        *UNITS.glob("image/system-preset/*.preset"),
        *LAYER.glob("recipes-core/magnitude-os-config/files/*.preset"),
    ]
    lines = [line for path in sorted(files, key=lambda path: path.name) for line in path.read_text().splitlines()]
    return [(line.split()[0], line.split()[1]) for line in lines if line and not line.startswith("#")]


def decided(unit: str) -> str:
    """What the presets say of `unit`; the series' last preset disables what none names."""
    return next((verb for verb, pattern in presets() if fnmatch(unit, pattern)), "disable")


@pytest.mark.parametrize(
    "unit",
    sorted(
        path.name
        for path in [*UNITS.glob("*.*"), *UNITS.glob("image/*.*")]
        if path.is_file() and "\n[Install]\n" in path.read_text()
    ),
)
def test_every_unit_that_can_be_enabled_is(unit: str) -> None:
    assert decided(unit) == "enable"


def test_a_timer_that_no_preset_names_is_wanted_by_another_unit() -> None:
    wanted = " ".join(re.findall(r"(?m)^Wants=(.*)$", "".join(p.read_text() for p in UNITS.glob("image/*/*.conf"))))
    for timer in UNITS.glob("image/*.timer"):
        assert decided(timer.name) == "enable" or timer.name in wanted.split()


@pytest.mark.parametrize(
    ("unit", "verb"),
    [
        ("NetworkManager.service", "enable"),
        ("systemd-timesyncd.service", "enable"),
        ("systemd-time-wait-sync.service", "disable"),
        ("NetworkManager-wait-online.service", "disable"),
        ("systemd-networkd-wait-online.service", "disable"),
    ],
)
def test_neither_clock_nor_network_hold_up_the_boot(unit: str, verb: str) -> None:
    assert decided(unit) == verb


def test_the_host_key_has_one_maker_and_one_place() -> None:
    config = (LAYER / "recipes-core/magnitude-os-config/magnitude-os-config.bb").read_text()
    assert "ln -s /dev/null ${D}${sysconfdir}/systemd/system/sshdgenkeys.service" in config
    sshd = (UNITS / "image/sshd_config.d/10-magnitude.conf").read_text()
    (key,) = re.findall(r"(?m)^HostKey (\S+)$", sshd)
    (folder,) = re.findall(r'(?m)^OPENSSH_HOST_KEY_DIR_READONLY_CONFIG = "(.+)"$', DISTRO)
    assert key == f"{folder}/{KEY_NAME}"
    (openssh,) = re.findall(r'(?m)^PACKAGECONFIG:pn-openssh = "(.+)"$', DISTRO)
    kinds = [word.removeprefix("hostkey-") for word in openssh.split() if word.startswith("hostkey-")]
    assert [f"ssh_host_{kind}_key" for kind in kinds] == [KEY_NAME]
    # openembedded-core has keys ready for images of one person; they would be the same on every board.
    texts = [path.read_text() for suffix in ("bb", "bbappend", "conf", "inc") for path in LAYER.rglob(f"*.{suffix}")]
    assert not any("pregen-hostkeys" in text for text in texts)


def test_sshd_waits_for_the_first_boot_and_no_socket_does() -> None:
    """Sockets are there before the services of the boot begin: one that waits for such a service is a circle, which
    systemd breaks by leaving one of the two out."""
    unit = configparser.RawConfigParser(strict=False, delimiters="=", comment_prefixes="#")
    unit.read(UNITS / "image/magnitude-first-boot.service")
    before = unit["Unit"]["Before"].split()
    assert "sshd.service" in before
    assert not [name for name in before if name.endswith((".socket", ".path", ".timer"))]
    assert "systemd-sshd-service-mode" in DISTRO


def test_only_the_boot_check_marks_a_slot_good() -> None:
    assert "ln -s /dev/null ${D}${sysconfdir}/systemd/system/rauc-mark-good.service" in RAUC_APPEND
    assert re.search(r'(?m)^RRECOMMENDS:\$\{PN\}:remove:magnitude-os = "\$\{PN\}-mark-good"$', RAUC_APPEND)
    assert decided("rauc-mark-good.service") == "disable"


def test_the_slot_tool_speaks_the_form_that_the_boot_check_reads() -> None:
    assert "--output-format=json" in (SERVICE / "update/slots.py").read_text()
    (built,) = re.findall(r'(?m)^PACKAGECONFIG:append:magnitude-os = "(.*)"$', RAUC_APPEND)
    assert "json" in built.split()


@pytest.mark.parametrize("image", sorted((LAYER / "recipes-core/images").glob("*.bb")), ids=lambda path: path.stem)
def test_no_image_has_a_password_or_a_root_that_is_written(image: Path) -> None:
    layer = read_layer()
    names = [image.stem, *(Path(name).stem for name in layer.recipe(image.stem).requires)]
    features = {word for name in names for word in layer.recipe(name).words("IMAGE_FEATURES")}
    assert "read-only-rootfs" in features
    open_doors = {"debug-tweaks", "empty-root-password", "allow-empty-password", "allow-root-login"}
    assert not features & open_doors
    for path in (CHECKOUT / "yocto/kas").rglob("*.yml"):
        assert not open_doors & set(re.findall(r"[\w-]+", path.read_text())), path.name


def test_pressure_and_the_memory_controller_are_asked_for_on_every_machine() -> None:
    """Where they are off all the same, the service says so and goes on; that is its own tests' matter."""
    assert re.search(r'(?m)^MAGNITUDE_KERNEL_ARGS \?= "psi=1 cgroup_enable=memory fsck\.repair=yes"$', DISTRO)
    machines = (LAYER / "conf/distro/include/magnitude-machines.inc").read_text()
    arguments = re.findall(r'(?m)^MAGNITUDE_SLOT_ARGS\S* = "(.*)"$', machines)
    assert len(arguments) == 3
    assert all("${MAGNITUDE_KERNEL_ARGS}" in words for words in arguments)
    options = (LAYER / "recipes-kernel/linux/files/magnitude.cfg").read_text()
    assert {"CONFIG_PSI=y", "CONFIG_MEMCG=y"} <= set(options.splitlines())
