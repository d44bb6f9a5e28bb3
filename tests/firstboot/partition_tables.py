"""Partition tables as `sfdisk --json` prints them."""

from __future__ import annotations

import json
from typing import Any

from magnitude.firstboot.data_partition import DISK_ID_MBR, PARTUUIDS_GPT

MIB = 2048  # in sectors of 512 bytes
# In MiB: boot, both roots, data. An image's data partition is small, since it is grown on the card.
LAYOUT = ((4, 256), (260, 1024), (1284, 1024), (2308, 64))
IMAGE_BYTES = (2308 + 64 + 1) << 20


def table(label: str = "gpt", *, device: str = "/dev/mmcblk0", **changes: Any) -> dict[str, Any]:
    separator = "p" if device[-1].isdigit() else ""
    parts: list[dict[str, Any]] = []
    for number, (start, size) in enumerate(LAYOUT, 1):
        part: dict[str, Any] = {"node": f"{device}{separator}{number}", "start": start * MIB, "size": size * MIB}
        part["type"] = "83" if label == "dos" else "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
        if label == "gpt":
            part["uuid"] = PARTUUIDS_GPT[number - 1]
        parts.append(part)
    found = {"label": label, "id": DISK_ID_MBR if label == "dos" else "6D61676E-0000-4000-8000-000000000000"}
    found |= {"device": device, "unit": "sectors", "sectorsize": 512, "partitions": parts, **changes}
    return found


def as_text(partition_table: dict[str, Any]) -> str:
    return json.dumps({"partitiontable": partition_table})


def script(label: str) -> str:
    """The same table as the input of sfdisk, to make it on a real file."""
    lines = [f"label: {label}"]
    if label == "dos":
        lines.append(f"label-id: {DISK_ID_MBR}")
    for number, (start, size) in enumerate(LAYOUT, 1):
        uuid = f", uuid={PARTUUIDS_GPT[number - 1]}" if label == "gpt" else ""
        lines.append(f"start={start * MIB}, size={size * MIB}, type=linux{uuid}")
    return "\n".join(lines) + "\n"
