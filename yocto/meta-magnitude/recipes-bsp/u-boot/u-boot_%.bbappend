FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:"

SRC_URI:append:magnitude-os = " file://magnitude-boot.cfg"
SRC_URI:append:raspberrypi5:magnitude-os = " file://magnitude-rpi5.cfg"
