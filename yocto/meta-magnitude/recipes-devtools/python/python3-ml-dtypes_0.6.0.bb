SUMMARY = "NumPy types of machine learning: bfloat16, float8, int4"
DESCRIPTION = "Number formats that NumPy lacks; the onnx library needs them."
HOMEPAGE = "https://github.com/jax-ml/ml_dtypes"
SECTION = "devel/python"
LICENSE = "Apache-2.0 & MPL-2.0"
LIC_FILES_CHKSUM = "\
    file://ml_dtypes-${PV}.dist-info/licenses/LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57 \
    file://ml_dtypes-${PV}.dist-info/licenses/LICENSE.eigen;md5=f75d2927d3c1ed2414ef72048f5ad640 \
"

PYPI_PACKAGE = "ml_dtypes"
WHEEL_TAGS[aarch64] = "cp314-cp314-manylinux_2_27_aarch64.manylinux_2_28_aarch64"
WHEEL_TAGS[x86_64] = "cp314-cp314-manylinux_2_27_x86_64.manylinux_2_28_x86_64"
SRC_URI[wheel-aarch64.sha256sum] = "317be9967fb84b0ce4e80e6b1bf71213d21971621cf6f1e501a63602a95297bf"
SRC_URI[wheel-x86_64.sha256sum] = "8f490c003369ce60e514a0c3b12374f05274c101fee1bead6740ec8a564032b0"

inherit magnitude_wheel

RDEPENDS:${PN} += "python3-numpy"
