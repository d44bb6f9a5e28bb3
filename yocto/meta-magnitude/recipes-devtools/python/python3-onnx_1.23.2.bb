SUMMARY = "The Open Neural Network Exchange format: reading, writing and checking models"
SUMMARY:${PN}-tests = "Test data of ONNX, and its reference implementation"
DESCRIPTION = "The interchange format of models, as a library: `magnitude import` builds its graphs with it."
HOMEPAGE = "https://onnx.ai/"
SECTION = "devel/python"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://onnx-${PV}.dist-info/licenses/LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"

WHEEL_TAGS[aarch64] = "cp312-abi3-manylinux_2_26_aarch64.manylinux_2_28_aarch64"
WHEEL_TAGS[x86_64] = "cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64"
SRC_URI[wheel-aarch64.sha256sum] = "a203efdbaabbbe8f25e854e2b2921382d6fcf4c67895656f939044b0632974e8"
SRC_URI[wheel-x86_64.sha256sum] = "7abf381d278f31ac62487fddedc9dd42da842dce94d5d43536836ee3efdf4a2b"

inherit magnitude_wheel

# Models and data of its tests, and an interpreter in Python to compare with.
PACKAGE_BEFORE_PN = "${PN}-tests"
FILES:${PN}-tests = "\
    ${PYTHON_SITEPACKAGES_DIR}/onnx/backend \
    ${PYTHON_SITEPACKAGES_DIR}/onnx/fuzz \
    ${PYTHON_SITEPACKAGES_DIR}/onnx/reference \
"
RDEPENDS:${PN}-tests = "${PN} python3-modules"

RDEPENDS:${PN} += "\
    python3-ml-dtypes \
    python3-numpy \
    python3-protobuf \
    python3-typing-extensions \
"
