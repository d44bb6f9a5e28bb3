SUMMARY = "Reading and writing GGUF files of models"
DESCRIPTION = "The format that llama.cpp keeps models in, as a library in Python: `magnitude import` reads weights with it."
HOMEPAGE = "https://ggml.ai/"
SECTION = "devel/python"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://gguf-${PV}.dist-info/licenses/LICENSE;md5=d486bb2ba5e2a4d3c958abbcbe1b9225"

WHEEL_TAGS = "py3-none-any"
SRC_URI[wheel.sha256sum] = "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd"

inherit magnitude_wheel

# Its metadata also asks for requests and tqdm, which it imports only to fetch files and to show a bar.
RDEPENDS:${PN} += "\
    python3-json \
    python3-logging \
    python3-numpy \
    python3-pyyaml \
"
