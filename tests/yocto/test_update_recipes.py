"""What the recipes around RAUC do with the builder's own files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from yocto.checks.kas import FOLDER as KAS
from yocto.checks.kas import read_build, read_kas
from yocto.checks.layer import CHECKOUT, LAYER

RAUC = LAYER / "dynamic-layers/rauc/recipes-core"
CONF_APPEND = (RAUC / "rauc/rauc-conf.bbappend").read_text()
KEY_CLASS = (LAYER / "classes-recipe/magnitude_update_key.bbclass").read_text()
KEYRING = "/home/builder/keys/ca.cert.pem"


def expanded(variable: str) -> str:
    (value,) = re.findall(rf'(?m)^{variable}:magnitude-os = "(.*)"$', CONF_APPEND)
    return str(value).replace("${MAGNITUDE_KEYRING_FILE}", KEYRING)


def test_the_keyring_is_read_where_bitbake_has_unpacked_it(tmp_path: Path) -> None:
    """A file that SRC_URI names by an absolute path keeps its folders below UNPACKDIR; rauc-conf installs
    UNPACKDIR/RAUC_KEYRING_FILE under its name."""
    unpacked = tmp_path / expanded("RAUC_KEYRING_URI").removeprefix("file://").lstrip("/")
    unpacked.parent.mkdir(parents=True)
    unpacked.touch()
    assert Path(f"{tmp_path}/{expanded('RAUC_KEYRING_FILE')}").is_file()


def test_the_configuration_names_the_keyring_as_it_lies_beside_it(tmp_path: Path) -> None:
    conf = tmp_path / "system.conf"
    conf.write_text("path=@KEYRING@\n")
    (command,) = re.findall(r'-e ("s/@KEYRING@.*") ', CONF_APPEND)
    script = f"sed -e {command.replace('${RAUC_KEYRING_FILE}', expanded('RAUC_KEYRING_FILE'))} {conf}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"path={Path(KEYRING).name}\n"


def test_every_file_of_the_builder_s_own_is_asked_for_and_made_by_the_script() -> None:
    """By the kas file, by the recipes that need it, by `env.sh` of scripts/make-update-key, and in the texts."""
    named = set(read_kas(KAS / "feature/rauc.yml").env)
    assert set(read_build("qemuarm64", rauc=True).files) == named
    bundle = (RAUC / "bundles/magnitude-update-bundle.bb").read_text()
    asked = re.findall(r'MAGNITUDE_UPDATE_KEY_FILES = "(.*)"', bundle)[0].split()
    asked += re.findall(r'MAGNITUDE_UPDATE_KEY_FILES"\) or "(\w+)"', KEY_CLASS)
    assert set(asked) == named
    script = (CHECKOUT / "scripts/make-update-key").read_text()
    assert set(re.findall(r"(?m)^export (\w+)=", script)) == named
    page = (CHECKOUT / "docs/updates.md").read_text()
    assert named <= set(re.findall(r"`(\w+)`", page))
