# What config.txt needs beyond the layer's own. Under this distribution and on this machine only.
#
# arm_64bit: U-Boot is a 64-bit program. disable_overscan and the like are left alone: no screen is used.
# MAGNITUDE_PI_BOOT_WATCHDOG_S arms the hardware watchdog before U-Boot starts, so that a kernel that hangs before
# systemd is there comes back as well. Off unless set: it needs an EEPROM from July 2025 on, and it must be longer than
# this board takes from power to systemd, which has to be measured first (docs/updates.md has the checklist).
# nooelint: oelint.vars.noncoreoverride
MAGNITUDE_PI_BOOT_WATCHDOG_S ?= ""

# nooelint: oelint.func.specific - the layer that this lies in has the machine
do_deploy:append:raspberrypi5:magnitude-os() {
    echo "arm_64bit=1" >> ${DEPLOYDIR}/${BOOTFILES_DIR_NAME}/config.txt
    if [ -n "${MAGNITUDE_PI_BOOT_WATCHDOG_S}" ]; then
        echo "kernel_watchdog_timeout=${MAGNITUDE_PI_BOOT_WATCHDOG_S}" >> ${DEPLOYDIR}/${BOOTFILES_DIR_NAME}/config.txt
    fi
}
