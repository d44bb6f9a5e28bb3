SUMMARY = "Signed update of a device: one root file system"
DESCRIPTION = "magnitude-image as a RAUC bundle. It holds the root slot and nothing else: no hook runs on the device, \
and nothing is carried over from the old root, because nothing of a device's own lies on a root."
HOMEPAGE = "https://rauc.readthedocs.io/"
SECTION = "base"
LICENSE = "Apache-2.0"
# nooelint: oelint.var.licenseremotefile
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

inherit bundle features_check

REQUIRED_DISTRO_FEATURES = "rauc"

MAGNITUDE_UPDATE_KEY_FILES = "RAUC_KEY_FILE RAUC_CERT_FILE"
inherit magnitude_update_key

RAUC_BUNDLE_COMPATIBLE = "magnitude-${MACHINE}"
RAUC_BUNDLE_VERSION = "${DISTRO_VERSION}"
RAUC_BUNDLE_DESCRIPTION = "Magnitude OS ${DISTRO_VERSION} for ${MACHINE}"
RAUC_BUNDLE_FORMAT = "verity"

RAUC_BUNDLE_SLOTS = "rootfs"
RAUC_SLOT_rootfs = "magnitude-image"
RAUC_SLOT_rootfs[fstype] = "ext4"
# A device that streams a bundle fetches only the blocks that it does not have.
RAUC_SLOT_rootfs[adaptive] = "block-hash-index"
