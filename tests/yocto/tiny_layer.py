"""A layer of a few lines in a folder of its own, to be broken in one place at a time."""

from __future__ import annotations

import hashlib
from pathlib import Path

from yocto.checks.layer import Layer, read_layer
from yocto.checks.upstream import Upstream

SHA = "0" * 64
REVISION = "a" * 40

MAGNITUDE = f"""\
SUMMARY = "The service"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=@LICENCE@"
SRC_URI = "git://somewhere;nobranch=1 \\
    file://local.py \\
"
SRCREV = "{REVISION}"
inherit python_hatchling
do_install() {{
    SRC_URI = "this is no assignment"
}}
RDEPENDS:${{PN}} = "python3-httpx python3-wheeled"
BBCLASSEXTEND = "native"
"""
WHEEL = f"""\
SUMMARY = "A library"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${{COMMON_LICENSE_DIR}}/MIT;md5=0835ade698e0bcf8506ecda2f7b4f302"
WHEEL_TAGS[aarch64] = "cp314-cp314-manylinux_2_28_aarch64"
SRC_URI[wheel-aarch64.sha256sum] = "{SHA}"
inherit magnitude_wheel
"""
MODELS = f"""\
SUMMARY = "Models"
LICENSE = "MIT"
PYPI_SRC_URI = "https://somewhere/a.whl;name=a;subdir=b"
SRC_URI[a.sha256sum] = "{SHA}"
inherit pypi
DEPENDS = "magnitude-native"
"""
GROUP = """\
SUMMARY = "All of it"
inherit packagegroup
PACKAGES = "${PN} ${PN}-import"
RDEPENDS:${PN} = "magnitude magnitude-models ${@bb.utils.contains('DISTRO_FEATURES', 'rauc', 'rauc', '', d)}"
RDEPENDS:${PN}-import = "python3-onnx"
"""
PYPROJECT = """\
[project]
dependencies = ["httpx>=0.27", "wheeled>=1.5"]
[project.optional-dependencies]
import = ["onnx>=1.17"]
"""

LISTED = {
    entry.name: entry
    for entry in (
        Upstream(name="python3", layer="core", recipe="python3", version="3.14.2"),
        Upstream(name="python3-httpx", layer="meta-python", recipe="python3-httpx", version="0.28.1"),
        Upstream(name="python3-onnx", layer="meta-python", recipe="python3-onnx", version="1.20.0"),
        Upstream(name="rauc", layer="rauc", recipe="rauc", version="1.15"),
    )
}

PATHS = {
    "magnitude": "recipes-a/magnitude/magnitude_0.1.0.bb",
    "wheel": "recipes-a/python/python3-wheeled_1.5.bb",
    "models": "recipes-a/models/magnitude-models_0.1.0.bb",
    "group": "recipes-a/groups/packagegroup-magnitude.bb",
}


def write_checkout(folder: Path) -> Path:
    """What the layer is compared with: a checkout with version, licence, models and requirements."""
    (folder / "service/magnitude").mkdir(parents=True)
    (folder / "service/magnitude/__init__.py").write_text('__version__ = "0.1.0"\n')
    (folder / "scripts").mkdir()
    (folder / "scripts/fetch_models.py").write_text(f'sha256="{SHA}",\n')
    (folder / "LICENSE").write_text("do as you like\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    return folder


def write_layer(folder: Path, **changes: tuple[str, str]) -> Layer:
    """A sound layer, with text replaced in some of its files: `wheel=("cp314", "cp313")`."""
    licence = hashlib.md5(b"do as you like\n", usedforsecurity=False).hexdigest()
    texts = {
        "magnitude": MAGNITUDE.replace("@LICENCE@", licence),
        "wheel": WHEEL,
        "models": MODELS,
        "group": GROUP,
    }
    for name, (old, new) in changes.items():
        assert old in texts[name], f"{old!r} is not in {name}"
        texts[name] = texts[name].replace(old, new)
    for name, path in PATHS.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(texts[name])
    local = folder / "recipes-a/magnitude/files/local.py"
    local.parent.mkdir()
    local.write_text("")
    (folder / "conf/distro").mkdir(parents=True)
    (folder / "conf/layer.conf").write_text('LAYERSERIES_COMPAT_magnitude = "wrynose"\n')
    (folder / "conf/distro/magnitude-os.conf").write_text('DISTRO_VERSION = "0.1.0"\nDISTRO_CODENAME = "wrynose"\n')
    return read_layer(folder)
