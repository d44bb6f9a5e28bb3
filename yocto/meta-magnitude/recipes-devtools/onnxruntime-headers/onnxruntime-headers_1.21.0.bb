SUMMARY = "ONNX Runtime's C headers, for operators of one's own"
DESCRIPTION = "The wheels that ONNX Runtime is published as bring no headers. Debian packages them apart from the \
    library; they are the same for every architecture, and what is built with them runs in newer versions as well."
HOMEPAGE = "https://onnxruntime.ai/"
SECTION = "devel"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://usr/share/doc/libonnxruntime-dev/copyright;md5=a924e59cf2989bbb672d1a2e969e60e6"

SRC_URI = "${DEBIAN_MIRROR}/main/o/onnxruntime/libonnxruntime-dev_${PV}+dfsg-1_amd64.deb;subdir=${BP}"
SRC_URI[sha256sum] = "14f7d959d5deacbcf1504830d4189f91fc67382b399ed9ae9d3aa9c4050ced08"
# The headers of a version, not the newest ones: these are the oldest that the kernels' operators are built with.
UPSTREAM_VERSION_UNKNOWN = "1"

S = "${UNPACKDIR}/${BP}"

inherit allarch

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -d ${D}${includedir}/onnxruntime
    install -m 0644 ${S}/usr/include/onnxruntime/*.h ${D}${includedir}/onnxruntime/
}

# Headers alone: nothing of it comes onto a device.
ALLOW_EMPTY:${PN} = "1"

BBCLASSEXTEND = "native"
