FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:"

SRC_URI:append:rk3588:magnitude-os = " file://magnitude-rk3588.cfg"
