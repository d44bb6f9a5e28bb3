"""Are there models, and are their files whole?"""

from __future__ import annotations

from magnitude.doctor.context import DoctorContext
from magnitude.doctor.finding import Finding
from magnitude.errors import MagnitudeError, ModelError


def check(context: DoctorContext) -> Finding:
    from magnitude.models.adapters import BrokenAdapter, scan_adapters, verify_adapter
    from magnitude.models.catalogue import BrokenModel, scan, verify_integrity

    good: list[str] = []
    broken: list[str] = []
    adapters: list[str] = []
    decoders = 0
    for entry in scan(context.models_folder):
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
