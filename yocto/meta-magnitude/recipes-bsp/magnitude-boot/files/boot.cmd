# Chooses a root slot and starts its kernel. U-Boot runs it from the boot partition (boot.scr), on every machine alike.
#
# What it keeps: BOOT_ORDER ("A B"), BOOT_A_LEFT and BOOT_B_LEFT (tries that are left), the names RAUC uses, and
# MACHINE_ID where first boot has put it. They lie in two copies before the first partition, each with a checksum,
# and not in U-Boot's own environment: that one also holds what U-Boot found out about the board (serial number,
# Ethernet address, where the firmware put the device tree), which must not travel to another board with the card.
#
# The first copy is the one that counts; Linux (fw_setenv, so RAUC) writes only that one. The second is the state as of
# the last start, for the case that the power failed while the first was being written.
#
# Every start takes one try from the slot it starts, before it loads anything. Only a slot that was marked good gets
# its tries back: nine, where a new update has three. A slot without tries, without a kernel or without its own settings is passed over; when nothing is
# left, all slots get their tries back and it goes on: a board never stays in here.

# Sector 0x1f80 is 0x3f0000 bytes, 0x1fc0 is 0x3f8000: the gap that Rockchip's layout leaves for an environment.
# 0x40 sectors are 0x8000 bytes.
setenv m_state_read no
setenv m_blocks 1f80 1fc0
setenv BOOT_ORDER
setenv BOOT_A_LEFT
setenv BOOT_B_LEFT
setenv MACHINE_ID

${devtype} dev ${devnum}
for m_block in ${m_blocks}; do
  if test ${m_state_read} = no; then
    if ${devtype} read ${ramdisk_addr_r} ${m_block} 40; then
      if env import -c ${ramdisk_addr_r} 8000 BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT MACHINE_ID; then
        setenv m_state_read yes
      fi
    fi
  fi
done
test -n "${BOOT_ORDER}" || setenv BOOT_ORDER A B
test -n "${BOOT_A_LEFT}" || setenv BOOT_A_LEFT 3
test -n "${BOOT_B_LEFT}" || setenv BOOT_B_LEFT 3

for m_round in 1 2; do
  # Both slots once more behind the order: an order that names one slot only must not hide the other.
  for m_slot in ${BOOT_ORDER} A B; do
    setenv m_left 0
    if test ${m_slot} = A; then
      setenv m_left ${BOOT_A_LEFT}
      setenv m_part 2
    fi
    if test ${m_slot} = B; then
      setenv m_left ${BOOT_B_LEFT}
      setenv m_part 3
    fi
    if test ${m_left} -gt 0; then
      # One try less: the largest number below. Counted out, because the ROCK 5B's U-Boot has no setexpr.
      for m_number in 0 1 2 3 4 5 6 7 8; do
        if test ${m_number} -lt ${m_left}; then
          setenv m_after ${m_number}
        fi
      done
      setenv BOOT_${m_slot}_LEFT ${m_after}
      env export -c -s 8000 ${ramdisk_addr_r} BOOT_ORDER BOOT_A_LEFT BOOT_B_LEFT MACHINE_ID
      for m_block in ${m_blocks}; do
        ${devtype} write ${ramdisk_addr_r} ${m_block} 40
      done
      echo "Magnitude: slot ${m_slot}, tries left after this one: ${m_after}"

      # The slot says what is to be started and with which options, so that they change together with its kernel.
      setenv slot_kernel
      setenv slot_fdt
      setenv slot_args
      setenv m_ready no
      if load ${devtype} ${devnum}:${m_part} ${ramdisk_addr_r} boot/magnitude.env; then
        if env import -t ${ramdisk_addr_r} ${filesize} slot_kernel slot_fdt slot_args; then
          if load ${devtype} ${devnum}:${m_part} ${kernel_addr_r} boot/${slot_kernel}; then
            setenv m_ready yes
          fi
        fi
      fi

      # Without a device tree of its own it takes the one that the firmware (Raspberry Pi, QEMU) has made for this
      # board, and what the firmware wants on the kernel's command line.
      setenv m_base
      if test -n "${slot_fdt}"; then
        setenv m_fdt ${fdt_addr_r}
        load ${devtype} ${devnum}:${m_part} ${fdt_addr_r} boot/${slot_fdt} || setenv m_ready no
      else
        # U-Boot's own copy of it is the one that is left where the firmware's has been overwritten.
        setenv m_fdt ${fdtcontroladdr}
        if test -n "${fdt_addr}"; then
          fdt addr ${fdt_addr} && setenv m_fdt ${fdt_addr}
        fi
        fdt addr ${m_fdt} && fdt get value m_base /chosen bootargs
      fi

      if test ${m_ready} = yes; then
        setenv m_id
        test -n "${MACHINE_ID}" && setenv m_id systemd.machine_id=${MACHINE_ID}
        part uuid ${devtype} ${devnum}:${m_part} m_root
        # A kernel that cannot find its root, or panics, has to come back here: rootwait and panic have their seconds.
        setenv bootargs ${m_base} root=PARTUUID=${m_root} rootfstype=ext4 ro rootwait=30 panic=10 rauc.slot=${m_slot} ${m_id} ${slot_args}
        echo "Magnitude: ${bootargs}"
        booti ${kernel_addr_r} - ${m_fdt}
      fi
      echo "Magnitude: slot ${m_slot} cannot be started"
    fi
  done
  echo "Magnitude: no slot has a try left, all of them get three again"
  setenv BOOT_A_LEFT 3
  setenv BOOT_B_LEFT 3
done

# Nothing could be loaded, twice from each slot. A card that was slow to wake up is there after a reset.
echo "Magnitude: no slot can be started. Trying again in 10 seconds"
sleep 10
reset
