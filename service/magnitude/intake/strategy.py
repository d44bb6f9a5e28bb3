"""`/v1/magnitude/strategy`: what was learned, how it is run now, and what a person may do to it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response

from magnitude.errors import MagnitudeError, ModelNotFound, RequestError
from magnitude.intake.body import read_json
from magnitude.intake.context import Context, context_of
from magnitude.intake.fields import Fields
from magnitude.intake.replies import json_reply
from magnitude.policy.dump_changes import Changed, import_file, pin, reset, reset_trained
from magnitude.policy.dump_exchange import Retired, Shown
from magnitude.policy.learned import Learned
from magnitude.policy.pinned import Pinned
from magnitude.schedule.strategy_control import MOST_HOLD_S, StrategyControl

ACTIONS = ("hold", "import", "reset", "pin", "unpin")


class Strategies(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        """By model what is learned and what runs; `?model=` only that one, `&generation=` as an earlier one was."""
        control = _control(context_of(request))
        known = control.learned()
        models = [_name_of(request, known, named)] if (named := request.query_params.get("model")) else list(known)
        if (number := request.query_params.get("generation")) is not None:
            return json_reply(await asyncio.to_thread(_generation, control, known, models, number))
        shown = [await asyncio.to_thread(_shown, control, model, known[model]) for model in models]
        return json_reply({"data": shown, "held_s": control.held_s(), "off": control.dumps.off})

    async def post(self, request: Request) -> Response:
        """One of: `hold` (seconds), `import` (a dump's text), `reset`, `pin`, `unpin`; the last four of a `model`."""
        context = context_of(request)
        control = _control(context)
        body = await read_json(request, context.settings.server)
        fields = Fields(body)
        if len(asked := [action for action in ACTIONS if fields.has(action)]) != 1:
            raise RequestError(
                "Exactly one thing can be asked for",
                hint=f"Give one of {', '.join(ACTIONS)}.",
                code="invalid_value",
            )
        if asked == ["hold"]:
            control.hold(fields.number("hold", 0.0, low=0.0, high=MOST_HOLD_S))
            return json_reply({"held_s": control.held_s()})
        known = control.learned()
        named = fields.text("model")
        model = _name_of(request, known, named) if named else ""
        changed = await asyncio.to_thread(_change, control, known, asked[0], fields, model)
        for name in changed.models:
            await control.reread(name, changed.change)
        return json_reply(changed)


def _change(control: StrategyControl, known: dict[str, Learned], action: str, fields: Fields, model: str) -> Changed:
    """In a thread: it writes files. What was learned since the last save is saved first where the files are read
    again, so that nothing is lost."""
    of_all = action == "reset" and (fields.boolean("all") or fields.boolean("trained"))
    if action != "import" and not model and not of_all:
        raise fields.wrong("model", "is missing", hint="Name one, or reset with all: true or trained: true.")
    if model and of_all:
        raise fields.wrong("model", "excludes all and trained")
    for name in [model] if model else known:
        if action in ("import", "reset") and known[name].entries:
            control.dumps.save(known[name])
    if action == "import":
        data = fields.text("import").encode()
        return import_file(control.dumps, known, data, "the file", model=model, as_prior=fields.boolean("as_prior"))
    if action in ("reset", "unpin") and not fields.boolean(action):
        raise fields.wrong(action, "must be true")
    if action == "reset" and fields.boolean("trained"):
        return reset_trained(control.dumps, known)
    if action == "reset":
        return reset(control.dumps, known, (model,) if model else tuple(known))
    if action == "unpin":
        return pin(control.dumps, known, model, None)
    return pin(control.dumps, known, model, _pinned(fields, known[model]), control.means(model))


def _pinned(fields: Fields, learned: Learned) -> Pinned:
    given = fields.object("pin")
    document: Any = given.as_dict() if given else {}
    where = {"board": learned.binding.board, "model": learned.binding.model}
    try:
        return msgspec.convert({**document, **where}, Pinned)
    except msgspec.ValidationError as error:
        raise fields.wrong("pin", f"is wrong: {error}") from error


def _shown(control: StrategyControl, model: str, learned: Learned) -> Shown:
    """In a thread: it reads files."""
    kept = control.dumps.kept(control.dumps.folder_of(learned.binding))
    return Shown(
        model=model,
        folder=kept.folder,
        learned=learned,
        generation=kept.dump.generation if kept.dump else 0,
        generations=kept.generations,
        retired=tuple(Retired(generation=dump.generation, why=dump.retired) for dump in kept.retired),
        pinned=control.dumps.pinned(learned.binding),
        running=control.running(model),
    )


def _generation(control: StrategyControl, known: dict[str, Learned], models: list[str], number: str) -> object:
    if len(models) != 1 or not number.isdecimal() or len(number) > 9:
        raise RequestError(
            "A generation is a number, of one model",
            hint="GET /v1/magnitude/strategy?model=NAME&generation=3",
            param="generation",
        )
    folder = control.dumps.folder_of(known[models[0]].binding)
    dump = control.dumps.generation(folder, int(number))
    if dump is None:
        kept = control.dumps.kept(folder)
        raise RequestError(
            f"{models[0]} has no generation {number} that can be read",
            hint=f"There are {', '.join(map(str, kept.generations)) or 'none'}.",
            param="generation",
            code="not_found",
        )
    return dump


def _control(context: Context) -> StrategyControl:
    if context.strategies is None:
        raise MagnitudeError(
            "This service learns no strategies", hint="Restart it with this version.", code="strategy_unavailable"
        )
    return context.strategies


def _name_of(request: Request, known: dict[str, Learned], named: str) -> str:
    """An alias becomes the model's name."""
    if named in known:
        return named
    name = context_of(request).inference.model(named).name
    if name not in known:
        raise ModelNotFound(
            f"Nothing is known yet of how {name} runs best",
            hint="It is once an engine has loaded the model.",
            param="model",
        )
    return name
