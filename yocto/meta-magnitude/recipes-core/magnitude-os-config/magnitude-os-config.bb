SUMMARY = "Which units of the system around the service start at boot"
DESCRIPTION = "Network and clock are looked after by one program each, and neither holds up the boot."
LICENSE = "Apache-2.0"
# The text that all recipes of this licence share; the repository's own is the same.
# nooelint: oelint.var.licenseremotefile
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

SRC_URI = "file://80-magnitude-os.preset"
S = "${UNPACKDIR}"

inherit allarch features_check

REQUIRED_DISTRO_FEATURES = "systemd"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -D -m 0644 ${S}/80-magnitude-os.preset ${D}${systemd_unitdir}/system-preset/80-magnitude-os.preset

    # The first boot makes the host key, so openssh's own unit has nothing to make. Two makers of one key are one too many.
    install -d ${D}${sysconfdir}/systemd/system
    ln -s /dev/null ${D}${sysconfdir}/systemd/system/sshdgenkeys.service
}

FILES:${PN} += "${systemd_unitdir}"
