# What is mounted where, on a device of ours. Under this distribution only.
FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:"

# Mount points on a root that is read-only.
dirs755:append:magnitude-os = " /boot/firmware /data ${sysconfdir}/magnitude"

do_install:append:magnitude-os() {
    sed -i \
        -e "s/@BOOT@/${MAGNITUDE_PARTUUID_BOOT}/" \
        -e "s/@DATA@/${MAGNITUDE_PARTUUID_DATA}/" \
        ${D}${sysconfdir}/fstab
}
