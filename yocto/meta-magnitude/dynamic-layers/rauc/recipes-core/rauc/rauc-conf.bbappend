FILESEXTRAPATHS:prepend:magnitude-os := "${THISDIR}/files:"

inherit_defer ${@"magnitude_update_key" if "magnitude-os" in (d.getVar("DISTROOVERRIDES") or "").split(":") else ""}

# An absolute path to the certificate that devices trust; on the device it keeps its name. BitBake unpacks such a file
# with all of its folders, so below UNPACKDIR it is called by its whole path. (By its name alone, looked for in
# FILESPATH, meta-rauc's example could take its place.)
RAUC_KEYRING_URI:magnitude-os = "file://${MAGNITUDE_KEYRING_FILE}"
RAUC_KEYRING_FILE:magnitude-os = "${MAGNITUDE_KEYRING_FILE}"

do_install:append:magnitude-os() {
    sed -i \
        -e "s/@MACHINE@/${MACHINE}/" \
        -e "s/@ROOT_A@/${MAGNITUDE_PARTUUID_ROOT_A}/" \
        -e "s/@ROOT_B@/${MAGNITUDE_PARTUUID_ROOT_B}/" \
        -e "s/@KEYRING@/$(basename "${RAUC_KEYRING_FILE}")/" \
        ${D}${nonarch_libdir}/rauc/system.conf
}
PACKAGE_ARCH:magnitude-os = "${MACHINE_ARCH}"
