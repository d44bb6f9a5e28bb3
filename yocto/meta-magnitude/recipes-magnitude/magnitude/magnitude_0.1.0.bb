SUMMARY = "A self-optimising inference service for AI agents on edge boards"
SUMMARY:${PN}-tests = "Tests and benches of Magnitude, to run on a board"
DESCRIPTION = "Serves language models and embedders through the OpenAI API. Models run on ONNX Runtime in a process \
    of their own; the service watches it, and tunes how models are run by what it measures on the board."
SECTION = "net"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"

# The units are chosen and adapted by the service's own code, which needs msgspec for it, and by systemd's version.
DEPENDS += "python3-msgspec-native"
DEPENDS:append:class-target = " systemd"

# The kernels have a recipe of their own: they are compiled for the board, and this wheel is for any machine. The
# recipe of the build backend does not name what that imports.
DEPENDS += "python3-packaging-native python3-pathspec-native python3-scikit-build-core-native"
PEP517_BUILD_OPTS = "--config-setting=wheel.cmake=false"

# The repository that this layer is a part of. Elsewhere, or with the layer copied out of it:
#   MAGNITUDE_GIT_URI = "git://HOST/PATH;protocol=https"
MAGNITUDE_GIT_URI ?= "git://${@os.path.realpath('${MAGNITUDE_LAYERDIR}/../..')};protocol=file"
# The revision counts, whichever branches a clone has.
SRC_URI = "${MAGNITUDE_GIT_URI};nobranch=1 \
    file://place-units.py \
"
SRCREV = "5ed13c7d64e3e3c402321af6f4c2fa3912abe0c7"

inherit features_check python_pep517 systemd useradd

# Units and sockets; the native package only imports models.
REQUIRED_DISTRO_FEATURES:class-target = "systemd"

# ONNX Runtime is published for these, linked against glibc.
COMPATIBLE_HOST = "(aarch64|x86_64).*-linux"
COMPATIBLE_HOST:libc-musl = "null"

do_install:append:class-target() {
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=${D}${PYTHON_SITEPACKAGES_DIR} nativepython3 ${UNPACKDIR}/place-units.py \
        --into ${D} --prefix ${prefix} --command ${bindir}/magnitude --systemd-below ${RECIPE_SYSROOT}

    # An overlay lies above it on the device: the user's settings stay apart from the image's.
    install -d ${D}${sysconfdir}/magnitude

    install -d ${D}${docdir}/magnitude
    install -m 0644 ${S}/config.example.yaml ${D}${docdir}/magnitude/

    # What the tests need of a checkout; they run against the installed service.
    install -d ${D}${datadir}/magnitude/checkout
    for part in pyproject.toml config.example.yaml README.md CONTRIBUTING.md docs systemd tests bench; do
        cp -R --no-preserve=ownership ${S}/$part ${D}${datadir}/magnitude/checkout/
    done
}

# The links to the embedded models, which every image of ours has from the same file.
do_install:append:class-native() {
    install -D -m 0644 ${S}/image/embedded-models.tmpfiles.conf ${D}${datadir}/magnitude/embedded-models.tmpfiles.conf
}

USERADD_PACKAGES = "${PN}"
GROUPADD_PARAM:${PN} = "--system magnitude"
USERADD_PARAM:${PN} = "--system --no-create-home --home-dir ${localstatedir}/lib/magnitude --shell ${base_sbindir}/nologin \
    --gid magnitude magnitude"

# The service's own preset says which of its units start at boot, here as on every other system.
SYSTEMD_AUTO_ENABLE = "preset"
SYSTEMD_SERVICE:${PN} = "magnitude.service magnitude.socket"

PACKAGE_BEFORE_PN = "${PN}-tests"
FILES:${PN}-tests = "${datadir}/magnitude/checkout"
# Units, helpers, and settings of the system's own services: whatever the units of this revision bring.
FILES:${PN} += "${nonarch_libdir}"
RDEPENDS:${PN}-tests = "${PN} bash python3-hypothesis python3-jsonschema python3-pytest"

# All of Python's own library (python3-modules): it is split by topic, the service and the libraries below import from
# most of it, and a module that is missing shows only when that line runs.
RDEPENDS:${PN} = "\
    python3-httpx \
    python3-jinja2 \
    python3-llguidance \
    python3-modules \
    python3-msgspec \
    python3-numpy \
    python3-onnxruntime \
    python3-prometheus-client \
    python3-psutil \
    python3-pyudev \
    python3-pyyaml \
    python3-rich \
    python3-starlette \
    python3-tokenizers \
    python3-typer \
    python3-uvicorn \
"
# Natively it only imports models.
RDEPENDS:${PN}:class-native = "\
    python3-gguf-native \
    python3-msgspec-native \
    python3-numpy-native \
    python3-onnx-native \
    python3-onnxruntime-bin-native \
    python3-safetensors-native \
    python3-tokenizers-native \
"

# Without kernels it works, slower.
RRECOMMENDS:${PN}:append:class-target = " magnitude-kernels"

BBCLASSEXTEND = "native"
