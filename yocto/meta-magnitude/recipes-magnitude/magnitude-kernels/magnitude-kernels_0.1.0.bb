SUMMARY = "Magnitude's kernels: the operators that decide how fast a language model answers"
DESCRIPTION = "A library of ONNX Runtime operators with all instruction sets of an architecture in it, chosen among at \
    run time, and the threads that compute them. The service works without it, slower."
SECTION = "libs"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"

DEPENDS = "onnxruntime-headers"

# The same source as the service's, and the same revision: scripts/check-layer compares them.
MAGNITUDE_GIT_URI ?= "git://${@os.path.realpath('${MAGNITUDE_LAYERDIR}/../..')};protocol=file"
SRC_URI = "${MAGNITUDE_GIT_URI};nobranch=1"
SRCREV = "5ed13c7d64e3e3c402321af6f4c2fa3912abe0c7"

inherit cmake python3-dir

# As for the service itself.
COMPATIBLE_HOST = "(aarch64|x86_64).*-linux"
COMPATIBLE_HOST:libc-musl = "null"

OECMAKE_SOURCEPATH = "${S}/kernels"
EXTRA_OECMAKE = "\
    -DONNXRUNTIME_INCLUDE_DIR=${STAGING_INCDIR}/onnxruntime \
    -DINSTALL_DIR=${PYTHON_SITEPACKAGES_DIR}/magnitude/kernels \
"

# Loaded by its path, out of the service's own package.
FILES:${PN} = "${PYTHON_SITEPACKAGES_DIR}/magnitude/kernels"

# Natively, models are compared with it when they are imported.
BBCLASSEXTEND = "native"
