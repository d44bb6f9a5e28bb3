"""Are there models, and are their files whole?"""

from __future__ import annotations

from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding
from magnitude.errors import MagnitudeError, ModelError


def check(context: DoctorContext) -> Finding:
    from magnitude.models.adapters import BrokenAdapter, scan_adapters, verify_adapter
    from magnitude.models.catalogue import BrokenModel, scan, verify_integrity
    from magnitude.models.variants import strays

    good: list[str] = []
    broken: list[str] = []
    adapters: list[str] = []
    decoders = 0
    entries = scan(context.models_folder)
    for entry in entries:
        if isinstance(entry, BrokenModel):
            broken.append(f"{entry.name}: {entry.message}")
            continue
        try:
            verify_integrity(entry, deep=True)
        except MagnitudeError as error:
            broken.append(f"{entry.name}: {error.message}")
            continue
        good.append(f"{entry.name} ({entry.kind}, {entry.weight_bytes / 1e6:.0f} MB)")
        for adapter in scan_adapters(entry):
            try:
                if isinstance(adapter, BrokenAdapter):
                    raise ModelError(adapter.message)
                verify_adapter(adapter)
            except MagnitudeError as error:
                broken.append(f"{entry.name}:{adapter.name}: {error.message}")
            else:
                adapters.append(f"{adapter.full_name} (adapter, {adapter.size_bytes / 1e6:.0f} MB)")
        decoders += entry.kind == "decoder"
    detail = "\n".join([str(context.models_folder), *good, *adapters, *broken])
    things = "models and adapters" if adapters else "models"
    if broken:
        return Finding(
            level="error",
            title=f"{len(broken)} of {len(good) + len(adapters) + len(broken)} {things} are damaged",
            detail=detail,
            advice="Remove and import again: `magnitude rm NAME`, then `magnitude import SOURCE`",
        )
    stray = strays([entry for entry in entries if not isinstance(entry, BrokenModel)])
    if stray:
        return Finding(
            level="warning",
            title=f"{len(stray)} variants belong to no model that is there, and are not served",
            detail="\n".join([detail, *(f"{name}: {reason}" for name, reason in stray.items())]),
            advice="Remove them (`magnitude rm NAME`), or import them again with --variant-of",
        )
    if not good:
        return Finding(
            level="warning",
            title="There is no model",
            detail=detail,
            advice="`magnitude import SOURCE` imports one; in a checkout scripts/run fetches two",
        )
    if not decoders:
        return Finding(
            level="notice",
            title="There is no chat model, so only embeddings and the like can be served",
            detail=detail,
            advice="`magnitude import SOURCE` imports one",
        )
    return Finding(level="ok", title=f"{len(good)} models, all files whole", detail=detail)
