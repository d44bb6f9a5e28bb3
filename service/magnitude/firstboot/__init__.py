"""What a device of ours does before its service: it takes over what its owner left on the boot partition, gets an
identity of its own, opens its socket as its configuration says, and fills its card; and what it then says on its
console.

Decisions are in `takeover.py` (with `parcel.py`, `wifi.py` and `login_keys.py`), `identity.py`, `open_socket.py`,
`data_partition.py` and `announcement.py`; files, mounts and programs are in `takeover_files.py`, `boot_partition.py`,
`host_keys.py`, `grow.py` and `device.py`.
"""
