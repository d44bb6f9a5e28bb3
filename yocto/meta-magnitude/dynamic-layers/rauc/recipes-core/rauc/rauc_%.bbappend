FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:"

SRC_URI:append:magnitude-os = " file://50-magnitude.conf"

# The boot check reads `rauc status --output-format=json`.
PACKAGECONFIG:append:magnitude-os = " json"

FILES:${PN}:append:magnitude-os = " ${systemd_system_unitdir}/rauc.service.d ${sysconfdir}/systemd/system"

# It marks a slot good as soon as it has booted. Here that is the boot check's verdict alone, after real inference.
RRECOMMENDS:${PN}:remove:magnitude-os = "${PN}-mark-good"

do_install:append:magnitude-os() {
    install -D -m 0644 ${UNPACKDIR}/50-magnitude.conf ${D}${systemd_system_unitdir}/rauc.service.d/50-magnitude.conf
    install -d ${D}${sysconfdir}/systemd/system
    ln -s /dev/null ${D}${sysconfdir}/systemd/system/rauc-mark-good.service
}
