FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:"

inherit_defer ${@"magnitude_update_key" if "magnitude-os" in (d.getVar("DISTROOVERRIDES") or "").split(":") else ""}

# An absolute path to the certificate that devices trust; on the device it keeps its name.
RAUC_KEYRING_URI:magnitude-os = "file://${MAGNITUDE_KEYRING_FILE}"
RAUC_KEYRING_FILE:magnitude-os = "${@os.path.basename(d.getVar('MAGNITUDE_KEYRING_FILE') or 'none')}"

do_install:append:magnitude-os() {
    sed -i \
        -e "s/@MACHINE@/${MACHINE}/" \
        -e "s/@ROOT_A@/${MAGNITUDE_PARTUUID_ROOT_A}/" \
        -e "s/@ROOT_B@/${MAGNITUDE_PARTUUID_ROOT_B}/" \
        -e "s/@KEYRING@/${RAUC_KEYRING_FILE}/" \
        ${D}${nonarch_libdir}/rauc/system.conf
}
PACKAGE_ARCH:magnitude-os = "${MACHINE_ARCH}"
