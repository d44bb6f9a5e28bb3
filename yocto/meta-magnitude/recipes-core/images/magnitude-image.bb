SUMMARY ?= "Flash it, boot it, and it serves"
DESCRIPTION ?= "A read-only root with the Magnitude inference service and its embedded models. All state lies on the \
    data partition; updates replace the root as a whole."
LICENSE = "Apache-2.0"

inherit core-image features_check

REQUIRED_DISTRO_FEATURES = "systemd"

# As for the service itself.
COMPATIBLE_HOST = "(aarch64|x86_64).*-linux"
COMPATIBLE_HOST:libc-musl = "null"

# Nobody has a password: a person comes in with the ssh key that lay on the boot partition at first boot.
IMAGE_FEATURES += "read-only-rootfs"

IMAGE_INSTALL = "\
    packagegroup-core-boot \
    packagegroup-magnitude \
    packagegroup-magnitude-import \
    ${CORE_IMAGE_EXTRA_INSTALL} \
"
IMAGE_LINGUAS = ""

# A slot is replaced as a whole, so nothing on the device installs packages.
IMAGE_FEATURES:remove = "package-management"

# Free room in a file system that is mounted read-only would be shipped and never used.
IMAGE_ROOTFS_EXTRA_SPACE = "0"
IMAGE_OVERHEAD_FACTOR = "1.05"
