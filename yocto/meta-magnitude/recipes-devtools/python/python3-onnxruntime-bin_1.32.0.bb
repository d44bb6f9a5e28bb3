SUMMARY = "ONNX Runtime, the CPU build that its project publishes"
SUMMARY:${PN}-tools = "ONNX Runtime's tools to convert and quantise models, and its library for C"
DESCRIPTION = "Runs ONNX models on the CPU; on arm64 with KleidiAI and MLAS kernels chosen at run time."
HOMEPAGE = "https://onnxruntime.ai/"
SECTION = "devel/python"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://onnxruntime/LICENSE;md5=0f7e3b1308cb5c00b372a6e78835732d"

PYPI_PACKAGE = "onnxruntime"
WHEEL_TAGS[aarch64] = "cp314-cp314-manylinux_2_28_aarch64"
WHEEL_TAGS[x86_64] = "cp314-cp314-manylinux_2_28_x86_64"
SRC_URI[wheel-aarch64.sha256sum] = "4135431395c1f37de0811f452c20a8b774f51812fda6c49611ed9899bbdbeeb4"
SRC_URI[wheel-x86_64.sha256sum] = "48b878f9551d465aa79ee94ecaf49a1f6b5d27f2975efa775ded374db14d0af1"

inherit magnitude_wheel

# Tools for the desk: converting, quantising and testing models; and the library for programs in C, 27 MB that Python's
# module has inside and does not link to. The service needs none of them.
PACKAGE_BEFORE_PN = "${PN}-tools"
FILES:${PN}-tools = "\
    ${PYTHON_SITEPACKAGES_DIR}/onnxruntime/backend \
    ${PYTHON_SITEPACKAGES_DIR}/onnxruntime/capi/libonnxruntime.so* \
    ${PYTHON_SITEPACKAGES_DIR}/onnxruntime/datasets \
    ${PYTHON_SITEPACKAGES_DIR}/onnxruntime/quantization \
    ${PYTHON_SITEPACKAGES_DIR}/onnxruntime/tools \
    ${PYTHON_SITEPACKAGES_DIR}/onnxruntime/transformers \
"
RDEPENDS:${PN}-tools = "${PN} python3-flatbuffers python3-modules python3-onnx python3-packaging python3-protobuf"

# Its metadata also asks for flatbuffers, packaging and protobuf, which only its tools import.
RDEPENDS:${PN} += "\
    python3-ctypes \
    python3-numpy \
"

# A build from source can take its place.
RPROVIDES:${PN} += "python3-onnxruntime"
