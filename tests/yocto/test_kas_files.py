"""The kas files: valid by kas' own schema, complete, and in step with the layer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kas.configschema import CONFIGSCHEMA

from yocto.checks.kas import machines, read_kas
from yocto.checks.layer import read_layer, series
from yocto.checks.upstream import read_upstream

ROOT = Path(__file__).resolve().parent.parent.parent
KAS = ROOT / "yocto/kas"
LAYER = ROOT / "yocto/meta-magnitude"
FILES = sorted(KAS.rglob("*.yml"))
MACHINES = sorted((KAS / "machine").glob("*.yml"))
SERIES = series(read_layer())
BITBAKE_BRANCH = read_kas(KAS / "base.yml").repos["bitbake"].branch
PAGE = (ROOT / "docs/image.md").read_text()
# The collections that layers call themselves, by repository and folder.
COLLECTIONS = {
    ("openembedded-core", "meta"): "core",
    ("meta-openembedded", "meta-oe"): "openembedded-layer",
    ("meta-openembedded", "meta-python"): "meta-python",
    ("meta-openembedded", "meta-networking"): "networking-layer",
}


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def test_there_is_a_file_for_each_machine_and_each_feature() -> None:
    assert [path.stem for path in MACHINES] == ["qemuarm64", "raspberrypi5", "rock-5b"]
    assert sorted(path.stem for path in (KAS / "feature").glob("*.yml")) == ["debug", "local-source", "rauc"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_is_valid_by_kas_own_schema(path: Path) -> None:
    jsonschema.validate(read(path), CONFIGSCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_file_includes_is_there_seen_from_the_repository_s_root(path: Path) -> None:
    for include in read(path)["header"].get("includes", []):
        assert (ROOT / include).is_file()


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_machine_s_file_is_named_as_its_machine_and_builds_alone(path: Path) -> None:
    content = read(path)
    assert content["machine"] == path.stem
    assert content["header"]["includes"] == ["yocto/kas/base.yml"]


def test_every_layer_comes_from_its_public_home_on_the_branch_of_the_layer_s_series() -> None:
    """Pins are the builder's (`kas lock`): a pin in here would keep security fixes out of everybody's builds."""
    for path in FILES:
        for name, repository in read(path).get("repos", {}).items():
            if name == "magnitude":
                assert "url" not in repository
                continue
            assert re.match(
                r"https://(git\.openembedded\.org|git\.yoctoproject\.org|github\.com)/", repository["url"]
            )
            assert "commit" not in repository
            # BitBake has numbers for branches.
            assert repository["branch"] == (BITBAKE_BRANCH if name == "bitbake" else SERIES)


def test_every_text_names_the_same_series_bitbake_and_python() -> None:
    """layer.conf says the series, the kas file BitBake's branch, what the layers have Python's version."""
    pages = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "docs/image.md", LAYER / "README.md")}

    def named(pattern: str) -> dict[str, set[Path]]:
        found: dict[str, set[Path]] = {}
        for path, text in pages.items():
            for name in re.findall(pattern, text):
                found.setdefault(name, set()).add(path)
        return found

    everywhere = set(pages)
    assert named(r"\*(\w+)\*+ series") == {SERIES: everywhere}
    assert set(named(r"\(branch ([a-z]+)\)")) | set(named(r"(?m)^\| (?:openembedded|meta)-[^|]*\| (\w+) \|")) == {
        SERIES
    }
    assert named(r"(?i)bitbake`? \(?(?:branch )?(\d+\.\d+)\b") == {BITBAKE_BRANCH: everywhere}
    assert set(named(r"Python (\d\.\d+)\)")) == {".".join(read_upstream()["python3"].version.split(".")[:2])}
    # What people call the series: nothing here says it but these pages.
    assert list(named(r"Yocto (\S+ LTS)").values()) == [everywhere]


def test_the_texts_name_every_clone_that_a_build_reads() -> None:
    clones = {name for path in FILES for name in read(path).get("repos", {})} - {"magnitude"}
    (listed,) = re.findall(r"`~/layers` holds clones named (.*?)\. It needs", PAGE, flags=re.S)
    assert set(re.findall(r"`([\w-]+)`", listed)) == clones
    rows = re.findall(r"(?m)^\| ([^|]*) \| \w+ \|", (LAYER / "README.md").read_text())
    assert {name for row in rows for name in re.findall(r"[\w-]+", row)} >= clones
    assert clones <= set(re.findall(r"[\w-]+", (ROOT / "yocto/checks/command.py").read_text()))


def test_building_by_hand_sets_what_the_kas_files_set() -> None:
    (block,) = re.findall(r"set in `local\.conf`\n\n```\n(.*?)```", PAGE, flags=re.S)
    said = dict(re.findall(r'(?m)^(\w+) = "(.*)"$', block))
    of_machines = "".join(text for path in MACHINES for text in read(path).get("local_conf_header", {}).values())
    given = {name: value.strip() for name, value in re.findall(r'(?m)^(\w+)(?::append)? = "(.*)"$', of_machines)}
    assert said == {"MACHINE": said["MACHINE"], "DISTRO": read(KAS / "base.yml")["distro"], **given}
    assert said["MACHINE"] in machines()


def test_the_layers_that_ours_depends_on_are_in_every_build() -> None:
    text = (LAYER / "conf/layer.conf").read_text()
    wanted = set(re.findall(r'LAYERDEPENDS_magnitude = "([^"]+)"', text)[0].split())
    repositories = read(KAS / "base.yml")["repos"]
    given = {
        COLLECTIONS[name, layer]
        for name, repository in repositories.items()
        for layer in repository["layers"]
        if (name, layer) in COLLECTIONS
    }
    assert given == wanted


def test_no_key_for_updates_is_named_in_a_file() -> None:
    environment = read(KAS / "feature/rauc.yml")["env"]
    assert environment == {"RAUC_KEY_FILE": None, "RAUC_CERT_FILE": None, "MAGNITUDE_KEYRING_FILE": None}


def test_a_working_tree_is_the_source_of_the_models_importer_as_well() -> None:
    """Image and build machine have the same service, and neither build writes into the checkout."""
    text = read(KAS / "feature/local-source.yml")["local_conf_header"]["local-source"]
    for name in ("magnitude", "magnitude-native", "magnitude-kernels", "magnitude-kernels-native"):
        assert f'EXTERNALSRC:pn-{name} = "${{MAGNITUDE_LAYERDIR}}/../.."' in text
        assert f'EXTERNALSRC_SYMLINKS:pn-{name} = ""' in text
