SUMMARY = "Metrics for Prometheus"
DESCRIPTION = "Counters and histograms in the format that Prometheus reads; the service's metrics are made with it."
HOMEPAGE = "https://github.com/prometheus/client_python"
SECTION = "devel/python"
LICENSE = "Apache-2.0 & BSD-2-Clause"
LIC_FILES_CHKSUM = "\
    file://LICENSE;md5=86d3f3a95c324c9479bd8986968f4327 \
    file://NOTICE;md5=4951b46e0743f84957d24051dcbdc0ae \
"

PYPI_PACKAGE = "prometheus_client"
SRC_URI[sha256sum] = "04a91bcf94e2cf74a44a1a874d651a2e853ed354b6e822f3b7487751465d5c2b"

inherit pypi python_setuptools_build_meta

RDEPENDS:${PN} += "\
    python3-compression \
    python3-json \
    python3-mmap \
    python3-netclient \
    python3-netserver \
    python3-threading \
"

BBCLASSEXTEND = "native nativesdk"
