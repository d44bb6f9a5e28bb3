SUMMARY = "Grammars that constrain what a language model writes"
DESCRIPTION = "Computes which tokens a JSON schema, a regular expression or a grammar allows next; structured answers and \
    tool calls are made with it."
HOMEPAGE = "https://github.com/guidance-ai/llguidance"
SECTION = "devel/python"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://llguidance-${PV}.dist-info/licenses/LICENSE;md5=d4a904ca135bb7bc912156fee12726f0"

WHEEL_TAGS[aarch64] = "cp39-abi3-manylinux_2_31_aarch64"
WHEEL_TAGS[x86_64] = "cp39-abi3-manylinux_2_31_x86_64"
SRC_URI[wheel-aarch64.sha256sum] = "31b75c9f6e09d000d062ef7e4eb3bcb3759fc1eda5619be50fdd8a830b0e8bdf"
SRC_URI[wheel-x86_64.sha256sum] = "dfac6021d9c4c5ef16b3a1d336c05ca5e8208ff30dec29d1c63ebcafbee3a346"

inherit magnitude_wheel

RDEPENDS:${PN} += "\
    python3-json \
    python3-numpy \
"
