"""Where learned strategies are read and changed: in the running service, else in its files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from magnitude.errors import MagnitudeError

if TYPE_CHECKING:
    from magnitude.cli.client import ServiceClient
    from magnitude.config import Settings
    from magnitude.paths import Paths
    from magnitude.policy.dump_changes import Changed
    from magnitude.policy.dump_exchange import Shown
    from magnitude.policy.dumps import Dump, Dumps
    from magnitude.policy.learned import Binding, Learned
    from magnitude.policy.pinned import Means, Pinned

PATH = "/v1/magnitude/strategy"


class Source(Protocol):
    """Raises `ModelNotFound` and other `MagnitudeError`s. `where` says in words which one it is."""

    where: str

    def shown(self, model: str = "") -> list[Shown]:
        """What is known of all models, or of that one: by name, or by the first digits of its hash."""
        ...

    def look_for(self, model: str) -> None:
        """Whether strategies of it can be changed. Raises `ModelNotFound` where not."""
        ...

    def generation(self, model: str, number: int) -> Dump: ...

    def import_file(self, data: bytes, name: str, *, model: str, as_prior: bool) -> Changed: ...

    def reset(self, models: tuple[str, ...]) -> Changed:
        """Empty: all models."""
        ...

    def reset_trained(self) -> Changed: ...

    def pin(self, model: str, pinned: Pinned | None) -> Changed: ...


@contextlib.contextmanager
def open_source(config: Path | None, url: str | None, api_key: str | None, models: Path | None) -> Iterator[Source]:
    """The running service's, else that of the files that a service here would use. Raises `ServiceUnreachable` only
    where `url` names one."""
    from magnitude.cli.client import ServiceUnreachable
    from magnitude.cli.models_folder import models_folder
    from magnitude.cli.options import reach_service, read_configuration
    from magnitude.paths import find_paths

    try:
        client = reach_service(config, url, api_key)
    except ServiceUnreachable:
        if url:
            raise
    else:
        with client:
            yield ServiceSource(client)
        return
    yield FileSource(read_configuration(config).settings, find_paths(), models_folder(models, config))


class ServiceSource:
    def __init__(self, client: ServiceClient) -> None:
        self.where = f"the service at {client.address}"
        self._client = client

    def shown(self, model: str = "") -> list[Shown]:
        from magnitude.policy.dump_exchange import Shown

        found = msgspec.convert(self._client.get(PATH)["data"], list[Shown])
        return _named(found, model) if model else found

    def look_for(self, model: str) -> None:
        from urllib.parse import urlencode

        self._client.get(f"{PATH}?{urlencode({'model': model})}")  # knows aliases too

    def generation(self, model: str, number: int) -> Dump:
        from urllib.parse import urlencode

        from magnitude.policy.dumps import Dump

        (shown,) = self.shown(model)
        query = urlencode({"model": shown.model, "generation": number})
        return msgspec.convert(self._client.get(f"{PATH}?{query}"), Dump)

    def import_file(self, data: bytes, name: str, *, model: str, as_prior: bool) -> Changed:
        # A file that is not even text is told by the service as what it is.
        body = {"import": data.decode("utf-8", "replace"), "as_prior": as_prior}
        return self._change(body | ({"model": model} if model else {}))

    def reset(self, models: tuple[str, ...]) -> Changed:
        if not models:
            return self._change({"reset": True, "all": True})
        changed = [self._change({"reset": True, "model": model}) for model in models]
        text = "\n".join(each.text for each in changed)
        return msgspec.structs.replace(changed[-1], models=models, text=text)

    def reset_trained(self) -> Changed:
        return self._change({"reset": True, "trained": True})

    def pin(self, model: str, pinned: Pinned | None) -> Changed:
        body: dict[str, Any] = {"unpin": True} if pinned is None else {"pin": msgspec.to_builtins(pinned)}
        return self._change({"model": model, **body})

    def _change(self, body: dict[str, Any]) -> Changed:
        from magnitude.policy.dump_changes import Changed

        return msgspec.convert(self._client.post(PATH, body), Changed)


class FileSource:
    def __init__(self, settings: Settings, paths: Paths, models: Path) -> None:
        from magnitude.policy.dumps import Dumps

        self.where = f"the files below {paths.state} (no service runs)"
        self._settings = settings
        self._models = models
        self._state = paths.state
        self._dumps = Dumps(paths.state)

    def shown(self, model: str = "") -> list[Shown]:
        from magnitude.policy.dump_exchange import shown_of

        found = [shown for kept in self._dumps.all() if (shown := shown_of(kept)) is not None]
        return _named(found, model) if model else found

    def look_for(self, model: str) -> None:
        from magnitude.policy.dump_changes import known_of

        known_of(self._known(), model)

    def generation(self, model: str, number: int) -> Dump:
        for shown in self.shown(model):
            dump = self._dumps.generation(Path(shown.folder), number)
            if dump is not None:
                return dump
        raise MagnitudeError(
            f"{model} has no generation {number} that can be read",
            hint=f"`magnitude strategy show {model}` lists them",
            code="not_found",
        )

    def import_file(self, data: bytes, name: str, *, model: str, as_prior: bool) -> Changed:
        from magnitude.policy.dump_changes import import_file

        return import_file(self._writable(), self._known(), data, name, model=model, as_prior=as_prior)

    def reset(self, models: tuple[str, ...]) -> Changed:
        from magnitude.policy.dump_changes import reset

        known = self._known()
        return reset(self._writable(), known, models or tuple(known))

    def reset_trained(self) -> Changed:
        from magnitude.policy.dump_changes import reset_trained

        return reset_trained(self._writable(), self._known())

    def pin(self, model: str, pinned: Pinned | None) -> Changed:
        from magnitude.policy.dump_changes import pin

        return pin(self._writable(), self._known(), model, pinned, self._means(model))

    def _means(self, model: str) -> Means | None:
        """What a service here would run the model by; None where it is not here."""
        from magnitude.board.cpu import cpu_quota, engine_cpus, topology
        from magnitude.board.roots import HostRoots
        from magnitude.kernels.offered import offered_graphs
        from magnitude.models.catalogue import BrokenModel, scan
        from magnitude.models.variants import variants_of
        from magnitude.policy.pinned import Means

        found = [each for each in scan(self._models) if not isinstance(each, BrokenModel)]
        described = next((each for each in found if each.name == model), None)
        if described is None:
            return None
        roots = HostRoots()
        cpus = engine_cpus(topology(roots), os.sched_getaffinity(0), cpu_quota(roots))
        return Means(
            cpus=cpus.cores,
            usable=cpus.usable,
            graphs=offered_graphs(described),
            variants=tuple(variant.name for variant in variants_of(described, found)),
            decodes=described.kind == "decoder",
        )

    def _writable(self) -> Dumps:
        with contextlib.suppress(OSError):  # what cannot be made is said when something is written there
            self._state.mkdir(parents=True, exist_ok=True)
        return self._dumps

    def _known(self) -> dict[str, Learned]:
        """Of the models here: what is on disk and holds on this machine now, else nothing."""
        from magnitude.models.catalogue import BrokenModel, scan
        from magnitude.policy.drift import holds
        from magnitude.policy.learned import Learned

        known = {}
        for model in scan(self._models):
            if isinstance(model, BrokenModel):
                continue
            binding = binding_here(model.name, model.model_hash, self._settings)
            dump = self._dumps.kept(self._dumps.folder_of(binding)).dump
            current = dump is not None and holds(dump.learned.binding, binding)
            known[model.name] = dump.learned if dump is not None and current else Learned(binding=binding)
        return known


def binding_here(model: str, model_hash: str, settings: Settings) -> Binding:
    """What a service on this machine would bind a model's figures to."""
    from importlib.metadata import version

    from magnitude.board import cpu_features
    from magnitude.board.profiles import profile_of
    from magnitude.board.roots import HostRoots
    from magnitude.policy.learned import Binding

    return Binding(
        board=profile_of(settings.board.profile, HostRoots()).name,
        model=model,
        model_hash=model_hash,
        ort_version=version("onnxruntime"),
        cpu_features=cpu_features(),
    )


def _named(found: list[Shown], model: str) -> list[Shown]:
    """Those of that name, else those whose hash begins so. Raises `ModelNotFound`."""
    from magnitude.errors import ModelNotFound

    fitting = [one for one in found if one.model == model]
    if not fitting and len(model) >= 6:
        fitting = [one for one in found if one.learned.binding.model_hash.startswith(model)]
    if not fitting:
        names = ", ".join(sorted({one.model for one in found})) or "none yet"
        raise ModelNotFound(f"nothing is learned of {model!r}", hint=f"There is something of: {names}", param="model")
    return fitting


def read_bytes(path: Path) -> bytes:
    """A dump's file. Raises `MagnitudeError` where it cannot be read or is far too large to be one."""
    from magnitude.persist import MAX_STATE_BYTES

    try:
        with path.open("rb") as file:
            data = file.read(MAX_STATE_BYTES + 1)
    except OSError as error:
        raise MagnitudeError(f"{path} cannot be read: {error.strerror or error}", hint="Name another file") from error
    if len(data) > MAX_STATE_BYTES:
        raise MagnitudeError(f"{path} is larger than {MAX_STATE_BYTES} bytes", hint="A dump is far smaller")
    return data


def learned_at(source: Source, reference: str) -> Learned:
    """What `reference` names: a file, MODEL, or MODEL@3 for a generation. Raises `MagnitudeError`."""
    from magnitude.errors import RequestError
    from magnitude.policy.dump_exchange import parsed
    from magnitude.policy.dumps import Dump

    path = Path(reference)
    if path.is_file() or "/" in reference or reference.endswith(".json"):
        found = parsed(read_bytes(path), str(path))
        if isinstance(found, Dump):
            return found.learned
        raise RequestError(
            f"{path} is a trained table of many boards, no dump", hint="Import it; then compare generations"
        )
    return shown_at(source, reference)[0].learned


def shown_at(source: Source, reference: str) -> list[Shown]:
    """All models (""), MODEL as it is now, or MODEL@3 as that generation was. Raises `MagnitudeError`."""
    model, _, number = reference.rpartition("@")
    if not model or not (number.isascii() and number.isdecimal()):
        return source.shown(reference)
    dump = source.generation(model, int(number))
    found, weights = source.shown(model), dump.learned.binding.model_hash
    now = next((one for one in found if one.learned.binding.model_hash == weights), found[0])
    return [
        msgspec.structs.replace(
            now,
            learned=dump.learned,
            generation=dump.generation,
            generations=(),
            retired=(),
            pinned=None,
            running=None,
        )
    ]
