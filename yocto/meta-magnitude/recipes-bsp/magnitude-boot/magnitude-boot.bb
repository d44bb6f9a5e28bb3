SUMMARY = "Boot script that chooses the root slot, and the place of its counters"
DESCRIPTION = "The script for U-Boot (deployed as boot.scr, onto the boot partition), the settings of a slot that it \
reads from there, and the place of its state for fw_setenv, with which RAUC marks slots."
HOMEPAGE = "https://www.rauc.io/"
SECTION = "bootloaders"
LICENSE = "Apache-2.0"
# nooelint: oelint.var.licenseremotefile
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

DEPENDS = "u-boot-tools-native"
PROVIDES = "u-boot-default-script"

SRC_URI = "\
    file://boot.cmd \
    file://61-magnitude-disk.rules \
"

S = "${UNPACKDIR}"

# Names of the machine's kernel and board are in it.
PACKAGE_ARCH = "${MACHINE_ARCH}"

inherit deploy

python () {
    if not d.getVar("MAGNITUDE_DISK_ID"):
        raise bb.parse.SkipRecipe("the partitions are unknown: use DISTRO magnitude-os, or require conf/distro/include/magnitude-partitions.inc in yours")
}

do_configure[noexec] = "1"

do_compile() {
    mkimage -A arm64 -O linux -T script -C none -n "Magnitude" -d ${S}/boot.cmd ${B}/boot.scr

    # Read by the script with names, so that nothing else in it has an effect.
    printf '%s\n' \
        "slot_kernel=${KERNEL_IMAGETYPE}" \
        "slot_fdt=${MAGNITUDE_SLOT_FDT}" \
        "slot_args=${MAGNITUDE_SLOT_ARGS}" > ${B}/magnitude.env

    # One line is one copy, without the flag byte of U-Boot's redundant form: RAUC changes the first copy, the script
    # keeps the second.
    echo "/dev/disk/magnitude ${MAGNITUDE_BOOT_STATE_OFFSET} ${MAGNITUDE_BOOT_STATE_SIZE}" > ${B}/fw_env.config

    sed "s/@DISK@/${@magnitude_table_uuid(d)}/" ${S}/61-magnitude-disk.rules > ${B}/61-magnitude-disk.rules
}

def magnitude_table_uuid(d):
    """What udev calls the disk's own identifier (ID_PART_TABLE_UUID): lower case, without 0x."""
    return (d.getVar("MAGNITUDE_DISKID_ARG") or "").removeprefix("0x")

do_install() {
    install -D -m 0644 ${B}/magnitude.env ${D}/boot/magnitude.env
    install -D -m 0644 ${B}/fw_env.config ${D}${sysconfdir}/fw_env.config
    install -D -m 0644 ${B}/61-magnitude-disk.rules ${D}${nonarch_base_libdir}/udev/rules.d/61-magnitude-disk.rules
}

FILES:${PN} += "/boot ${nonarch_base_libdir}/udev/rules.d"

# fw_printenv and fw_setenv
RDEPENDS:${PN} = "libubootenv-bin"

do_deploy() {
    install -m 0644 ${B}/boot.scr ${DEPLOYDIR}/boot.scr
}
addtask deploy before do_build after do_compile
