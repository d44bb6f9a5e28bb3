"""What is taken away from Debian and from its kernel, on trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from image.guest.trimming import MODULES, PACKAGES, module_name, trim_debian, trim_modules


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the packages that are left out, and one of the others, as dpkg notes them."""
    stanzas = []
    for name in (*PACKAGES, "tar"):
        write(tmp_path / f"usr/bin/{name}")
        # Newer dpkg names the architecture, but for packages that fit all.
        listed = f"{name}.list" if name.startswith("deb") else f"{name}:arm64.list"
        write(tmp_path / f"var/lib/dpkg/info/{listed}", f"/.\n/usr\n/usr/bin\n/usr/bin/{name}\n")
        stanzas.append(f"Package: {name}\nStatus: install ok installed\nDescription: d\n .\n more\n")
    write(tmp_path / "var/lib/dpkg/status", "\n".join(stanzas))
    return tmp_path


def test_packages_go_with_their_files_and_what_others_own_stays(root: Path) -> None:
    trim_debian(root)
    assert [path.name for path in (root / "usr/bin").iterdir()] == ["tar"]


def test_the_list_of_what_is_installed_stays_and_is_true(root: Path) -> None:
    trim_debian(root)
    text = (root / "var/lib/dpkg/status").read_text()
    assert text == "Package: tar\nStatus: install ok installed\nDescription: d\n .\n more\n"
    assert not (root / "var/lib/dpkg/info").exists()


def test_a_package_that_debian_no_longer_has_is_an_error(root: Path) -> None:
    (root / "var/lib/dpkg/info/apt:arm64.list").unlink()
    with pytest.raises(ValueError, match="unpack"):
        trim_debian(root)


def test_modules_stay_by_name_or_folder_with_all_that_they_need(tmp_path: Path) -> None:
    needs = {
        "kernel/drivers/net/virtio_net.ko.xz": ["kernel/net/core/failover.ko.xz"],
        "kernel/net/core/failover.ko.xz": [],
        "kernel/drivers/md/dm-verity.ko": [],
        "kernel/arch/arm64/crypto/sha2-ce.ko": [],
        "kernel/drivers/net/wireless/rtl.ko": ["kernel/net/wireless/cfg80211.ko"],
        "kernel/net/wireless/cfg80211.ko": [],
    }
    for path in needs:
        write(tmp_path / path)
    write(tmp_path / "modules.dep", "".join(f"{path}: {' '.join(needed)}\n" for path, needed in needs.items()))
    trim_modules(tmp_path)
    stay = sorted(module_name(str(path)) for path in tmp_path.rglob("*.ko*"))
    assert stay == ["dm_verity", "failover", "sha2_ce", "virtio_net"]
    assert not (tmp_path / "kernel/drivers/net/wireless").exists()


def test_no_pattern_of_modules_takes_all() -> None:
    assert all(pattern.strip("*/") for pattern in MODULES)
