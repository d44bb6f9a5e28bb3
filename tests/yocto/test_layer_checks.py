"""Each kind of fault in a recipe is found, and named in its file."""

from __future__ import annotations

import subprocess
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from tests.yocto.tiny_layer import LISTED, PATHS, REVISION, SHA, write_checkout, write_layer
from yocto.checks.dependencies import check_requirements, check_resolved, check_tested, check_wheels
from yocto.checks.finding import Finding
from yocto.checks.layer import Layer, read_layer
from yocto.checks.pins import check_pins, check_revision, why_no_history
from yocto.checks.sources import check_sources
from yocto.checks.upstream import check_upstream, missing_layers, read_upstream


def found(layer: Layer, checkout: Path) -> list[Finding]:
    return [
        *check_sources(layer, checkout),
        *check_resolved(layer, LISTED),
        *check_requirements(layer, LISTED, checkout / "pyproject.toml"),
        *check_wheels(layer, LISTED),
        *check_pins(layer, checkout),
    ]


def test_nothing_is_found_in_a_sound_layer(tmp_path: Path) -> None:
    assert found(write_layer(tmp_path / "layer"), write_checkout(tmp_path / "checkout")) == []


@pytest.mark.parametrize(
    ("recipe", "old", "new", "message"),
    [
        ("magnitude", "file://local.py", "file://missing.py", "missing.py"),
        ("magnitude", REVISION, "main", "no full revision"),
        ("magnitude", 'SRCREV = "', 'SRCREV_other = "', "no full revision"),
        ("magnitude", ";md5=", ";md5=0", "has no MD5"),
        ("magnitude", "python3-httpx ", "python3-nothing ", "python3-nothing is neither"),
        ("magnitude", "python3-httpx ", "", "no RDEPENDS on python3-httpx"),
        ("wheel", SHA, "0" * 63, "no SHA-256"),
        ("wheel", "SRC_URI[wheel-aarch64", "SRC_URI[wheel-x86_64", "no SRC_URI[wheel-aarch64.sha256sum]"),
        ("wheel", "cp314-cp314", "cp313-cp313", "the series has cp314"),
        ("wheel", "cp314-cp314", "cp314-cp314t", "the series has cp314"),
        ("wheel", "28_aarch64", "28_x86_64", "is for manylinux_2_28_x86_64"),
        ("wheel", "0835ade6", "0835ade7", "the MD5 of"),
        ("models", "name=a", "name=b", "no SRC_URI[b.sha256sum]"),
        ("models", SHA, "1" * 64, "not those of scripts/fetch_models.py"),
        ("models", 'LICENSE = "MIT"\n', "", "no LICENSE"),
        ("group", "'rauc', 'rauc'", "'rauc', 'raucx'", "raucx is neither"),
        ("group", "python3-onnx", "magnitude", "no RDEPENDS on python3-onnx"),
    ],
)
def test_a_fault_is_found_in_its_file(tmp_path: Path, recipe: str, old: str, new: str, message: str) -> None:
    layer = write_layer(tmp_path / "layer", **{recipe: (old, new)})
    findings = found(layer, write_checkout(tmp_path / "checkout"))
    assert [finding for finding in findings if message in finding.message]
    assert {finding.path for finding in findings} == {layer.root / PATHS[recipe]}


def test_a_changed_licence_of_the_project_is_found(tmp_path: Path) -> None:
    layer, checkout = write_layer(tmp_path / "layer"), write_checkout(tmp_path / "checkout")
    (checkout / "LICENSE").write_text("do as I say\n")
    assert [finding.path.name for finding in found(layer, checkout)] == ["magnitude_0.1.0.bb"]


def test_a_version_below_the_bound_of_pyproject_is_found_wherever_it_comes_from(tmp_path: Path) -> None:
    layer, checkout = write_layer(tmp_path / "layer"), write_checkout(tmp_path / "checkout")
    text = (checkout / "pyproject.toml").read_text()
    (checkout / "pyproject.toml").write_text(text.replace("0.27", "0.29").replace("1.5", "1.6").replace("1.17", "2"))
    messages = [finding.message for finding in found(layer, checkout)]
    assert messages == [
        "pyproject.toml requires httpx>=0.29, and the recipe has 0.28.1",
        "pyproject.toml requires wheeled>=1.6, and the recipe has 1.5",
        "pyproject.toml requires onnx>=2, and the recipe has 1.20.0",
    ]


@pytest.mark.parametrize(
    ("version", "requires", "faults", "said"),
    [
        ("1.5", "httpx<1", [], []),
        ("1.5", "nobody-packages-this>9; extra == 'x'", [], []),
        ("1.4", "", ["the tests run with wheeled 1.4"], []),
        ("1.6", "httpx>9", [], ["python3-wheeled 1.5: the tests run with 1.6"]),
        ("1.5", "httpx>9", ["it requires httpx>9, and the recipe of python3-httpx has 0.28.1"], []),
        ("", "", [], ["python3-wheeled 1.5: wheeled is not installed where the tests run"]),
    ],
    ids=["the same", "an extra", "older", "newer", "needs more than there is", "not there"],
)
def test_a_wheel_is_compared_with_what_the_tests_run_with(
    tmp_path: Path, version: str, requires: str, faults: list[str], said: list[str]
) -> None:
    folder = tmp_path / "wheeled.dist-info"
    folder.mkdir()
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: wheeled\nVersion: {version}\n{needs}")
    asked: list[str] = []

    def tested(project: str) -> Distribution | None:
        asked.append(project)
        return Distribution.at(folder) if version else None

    findings, older = check_tested(write_layer(tmp_path / "layer"), LISTED, tested)
    assert asked == ["wheeled"]
    assert ([finding.message for finding in findings], older) == (faults, said)


def test_a_service_of_another_version_is_found_in_recipe_and_distribution(tmp_path: Path) -> None:
    layer, checkout = write_layer(tmp_path / "layer"), write_checkout(tmp_path / "checkout")
    (checkout / "service/magnitude/__init__.py").write_text('__version__ = "0.2.0"\n')
    assert {finding.path.name for finding in found(layer, checkout)} == {"magnitude_0.1.0.bb", "magnitude-os.conf"}


def test_recipes_of_this_repository_are_of_one_revision(tmp_path: Path) -> None:
    layer, checkout = write_layer(tmp_path / "layer"), write_checkout(tmp_path / "checkout")
    kernels = layer.root / "recipes-a/kernels/magnitude-kernels_0.1.0.bb"
    kernels.parent.mkdir()
    ours = (layer.root / PATHS["magnitude"]).read_text().replace("    file://local.py \\\n", "")
    uri = 'MAGNITUDE_GIT_URI ?= "git://somewhere"\n'
    kernels.write_text(uri + ours)
    assert found(read_layer(layer.root), checkout) == []
    kernels.write_text(uri + ours.replace(REVISION, "b" * 40))
    assert [finding.path.name for finding in found(read_layer(layer.root), checkout)] == [kernels.name]


def test_a_distribution_of_another_series_than_the_layer_s_is_found(tmp_path: Path) -> None:
    layer, checkout = write_layer(tmp_path / "layer"), write_checkout(tmp_path / "checkout")
    (layer.root / "conf/layer.conf").write_text('LAYERSERIES_COMPAT_magnitude = "scarthgap"\n')
    assert [finding.path.name for finding in found(layer, checkout)] == ["magnitude-os.conf"]


class Repository:
    """A git repository of the checkout that the tiny layer is compared with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.commits = write_checkout(folder), 0
        self.git("init", "--quiet")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ("git", "-C", str(self.folder), *identity, *words), check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, **texts: str) -> str:
        """Writes `texts` (path with two underscores for each slash), commits all; the revision."""
        for name, text in texts.items():
            path = self.folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", ".")
        # Each with words of its own: two that are alike in the same second would be one.
        self.commits += 1
        self.git("commit", "--quiet", "--allow-empty", "-m", f"commit {self.commits}")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "checkout")


def messages(folder: Path, repository: Repository, revision: str, *, more: str = "") -> list[str]:
    layer = write_layer(folder / f"layer-{revision[:9]}", magnitude=(REVISION, revision + more))
    return [finding.message.replace(revision, "R") for finding in check_revision(layer, repository.folder)]


def test_a_revision_counts_only_when_the_repository_has_it_in_its_history(
    tmp_path: Path, repository: Repository
) -> None:
    first = repository.commit()
    repository.commit()
    assert messages(tmp_path, repository, first) == []
    assert ["not in the history" in text for text in messages(tmp_path, repository, REVISION)] == [True]
    repository.git("checkout", "--quiet", "--orphan", "other")
    repository.commit()
    assert ["not in the history" in text for text in messages(tmp_path / "other", repository, first)] == [True]


def test_a_revision_is_of_the_recipe_s_version_and_has_what_the_recipe_takes(
    tmp_path: Path, repository: Repository
) -> None:
    first = repository.commit()
    (repository.folder / "service/magnitude/__init__.py").write_text('__version__ = "0.2.0"\n')
    (repository.folder / "config.yaml").touch()
    newer = repository.commit()
    taken = '"\ndo_install:append() {\n    install ${S}/config.yaml ${D}\n}\nSECTION = "net'
    assert messages(tmp_path, repository, first, more=taken) == ["the revision R has no config.yaml"]
    assert ["0.2.0" in text for text in messages(tmp_path, repository, newer)] == [True]


def test_a_revision_is_as_the_last_commit_in_what_the_layer_counts_on_and_older_in_the_rest(
    tmp_path: Path, repository: Repository
) -> None:
    first = repository.commit(systemd__magnitude="a unit")
    second = repository.commit(service__magnitude__engine="of no matter to the layer", README="neither")
    assert messages(tmp_path / "one", repository, first) == []
    repository.commit(systemd__magnitude="another unit", service__magnitude__firstboot__new="calls a program")
    assert sorted(messages(tmp_path / "two", repository, second)) == [
        "the revision R has an older service/magnitude/firstboot/new",
        "the revision R has an older systemd/magnitude",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("httpx>=0.27", "httpx>=0.28"),
        ("onnx>=1.17", "onnx>=1.18"),
        ("[project]", "[project.scripts]\na = 'b'\n[project]"),
    ],
)
def test_a_revision_that_requires_other_packages_is_found(
    tmp_path: Path, repository: Repository, old: str, new: str
) -> None:
    first = repository.commit()
    text = (repository.folder / "pyproject.toml").read_text()
    assert old in text
    (repository.folder / "pyproject.toml").write_text(f"# a word to readers\n{text}")
    repository.commit()
    assert messages(tmp_path / "one", repository, first) == []
    (repository.folder / "pyproject.toml").write_text(text.replace(old, new))
    repository.commit()
    assert ["requires other packages" in text for text in messages(tmp_path / "two", repository, first)] == [True]


def test_of_a_folder_without_history_nothing_is_said(tmp_path: Path, repository: Repository) -> None:
    repository.commit()
    repository.commit()
    assert why_no_history(repository.folder) == ""
    assert "no git repository" in why_no_history(tmp_path)
    clone = tmp_path / "clone"
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.folder}", str(clone))
    assert "shallow" in why_no_history(clone)


def test_the_list_of_what_other_layers_have_is_compared_with_them(tmp_path: Path) -> None:
    folder = tmp_path / "meta-openembedded/meta-python/recipes-a/python"
    folder.mkdir(parents=True)
    (folder / "python3-httpx_0.28.1.bb").touch()
    (folder / "python3-onnx_1.21.0.bb").touch()
    (tmp_path / "meta-rauc").mkdir()
    messages = [finding.message for finding in check_upstream(LISTED, tmp_path)]
    assert messages == ["python3-onnx is 1.20.0 here and 1.21.0 in meta-python", "rauc has no recipe rauc"]
    assert missing_layers(LISTED, tmp_path) == ["core"]


def test_a_package_of_a_recipe_with_another_name_is_listed_with_it(tmp_path: Path) -> None:
    listed = tmp_path / "upstream.yaml"
    listed.write_text("core:\n  systemd: '259.1'\n  e2fsprogs-resize2fs: e2fsprogs 1.47.3\n")
    entries = read_upstream(listed)
    assert (entries["systemd"].recipe, entries["systemd"].version) == ("systemd", "259.1")
    assert (entries["e2fsprogs-resize2fs"].recipe, entries["e2fsprogs-resize2fs"].version) == ("e2fsprogs", "1.47.3")
