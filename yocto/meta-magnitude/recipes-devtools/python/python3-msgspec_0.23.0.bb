SUMMARY = "Fast serialization and validation by types"
DESCRIPTION = "Structs with types that are checked when data is decoded; all settings, messages and state files of the \
    service are such structs."
HOMEPAGE = "https://jcristharif.com/msgspec/"
SECTION = "devel/python"
LICENSE = "BSD-3-Clause"
LIC_FILES_CHKSUM = "file://msgspec-${PV}.dist-info/licenses/LICENSE;md5=c21402f8022478021f697044388b97c4"

WHEEL_TAGS[aarch64] = "cp314-cp314-manylinux2014_aarch64.manylinux_2_17_aarch64.manylinux_2_28_aarch64"
WHEEL_TAGS[x86_64] = "cp314-cp314-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64"
SRC_URI[wheel-aarch64.sha256sum] = "c5b4cec4279c717a0c70cdf3d2a750349bbed82152a87a6863909f3724224836"
SRC_URI[wheel-x86_64.sha256sum] = "9d6df6890bc48a2359172ba38dcdd2a8f4a53013bc68a0a6495f8b3c3d4e4024"

inherit magnitude_wheel

RDEPENDS:${PN} += "\
    python3-datetime \
    python3-json \
    python3-numbers \
"
