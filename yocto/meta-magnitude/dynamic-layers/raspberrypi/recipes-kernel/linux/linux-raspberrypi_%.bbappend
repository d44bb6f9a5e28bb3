# The fragments that the other machines' kernel has as well, and what is the Raspberry Pi's own.
FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:${MAGNITUDE_LAYERDIR}/recipes-kernel/linux/files:"

SRC_URI:append:magnitude-os = " \
    file://magnitude.cfg \
    file://magnitude-rpi.cfg \
    ${@bb.utils.contains('DISTRO_FEATURES', 'rauc', 'file://magnitude-update.cfg', '', d)} \
"
