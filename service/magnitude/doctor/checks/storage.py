"""Is there room for models and state, and can it be written?"""

from __future__ import annotations

import os

from magnitude.board import storage_of
from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding

MIB = 1 << 20
LEAST_BYTES = 64 * MIB  # state, logs and the temporary files of saving them
MODEL_BYTES = 600 * MIB  # a 0.5B model in 4 bits, and room to write the new one beside the old


def check(context: DoctorContext) -> Finding:
    try:
        storage = storage_of(context.paths.state)
    except OSError as error:
        return Finding(
            level="error",
            title=f"The storage of {context.paths.state} cannot be read",
            detail=str(error),
            advice="Look at `dmesg` and at the card or disk",
        )
    detail = f"{storage.folder}: {storage.free_bytes // MIB} of {storage.total_bytes // MIB} MiB free"
    if storage.read_only or not os.access(storage.folder, os.W_OK):
        why = "is mounted read-only" if storage.read_only else "cannot be written by this user"
        return Finding(
            level="warning",
            title=f"{storage.folder} {why}: nothing can be imported, and state is lost at a restart",
            detail=detail,
            advice="Remount it (a card that turned read-only is often worn out), or run this as the service's user",
        )
    if storage.free_bytes < LEAST_BYTES:
        return Finding(
            level="error", title="The storage is full", detail=detail, advice="`magnitude rm MODEL` removes a model"
        )
    if storage.free_bytes < MODEL_BYTES:
        return Finding(
            level="warning",
            title=f"Little storage left: {storage.free_bytes // MIB} MiB, too little to import a usual model",
            detail=detail,
            advice="`magnitude rm MODEL` removes a model",
        )
    return Finding(level="ok", title=f"Storage: {storage.free_bytes // MIB} MiB left", detail=detail)
