SUMMARY = "Weights of models in files that are safe to read"
DESCRIPTION = "A format for tensors that holds no code, as a library: `magnitude import` reads weights with it."
HOMEPAGE = "https://github.com/huggingface/safetensors"
SECTION = "devel/python"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://safetensors-${PV}.dist-info/licenses/LICENSE;md5=86d3f3a95c324c9479bd8986968f4327"

WHEEL_TAGS[aarch64] = "cp310-abi3-manylinux_2_17_aarch64.manylinux2014_aarch64"
WHEEL_TAGS[x86_64] = "cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64"
SRC_URI[wheel-aarch64.sha256sum] = "7a46e5ff292c356d6991e60942ba7f79817682d3a2cef0702136448cb9c4d235"
SRC_URI[wheel-x86_64.sha256sum] = "fd6f3f93c9a0a7cc2788ee63fb763353d4bd2e89b0751bc78fcf7dda00bea774"

inherit magnitude_wheel

RDEPENDS:${PN} += "python3-numpy"
