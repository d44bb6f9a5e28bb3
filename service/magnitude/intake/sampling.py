"""The fields that say how tokens are drawn and when an answer ends: the same for chat and completions."""

from __future__ import annotations

import secrets

import msgspec

from magnitude.config import EngineSettings
from magnitude.engine.protocol import Overflow, SamplerSettings
from magnitude.errors import RequestError
from magnitude.intake.fields import Fields

_MAX_STOPS = 4  # as OpenAI
_MAX_STOP_CHARS = 1024  # text is held back while it may become a stop; this bounds how much
_MAX_BIASES = 1024
_SEED_BITS = 64


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """`max_new_tokens` is the client's own limit, or the configured one; the model's context still bounds it,
    unless it may `overflow`. `save`: whether the conversation may go to the disk."""

    sampler: SamplerSettings
    stops: tuple[str, ...] = ()
    max_new_tokens: int
    overflow: Overflow = "stop"
    save: bool = True


def parse_sampling(fields: Fields, engine: EngineSettings) -> Sampling:
    """Read the sampling fields. Raises `RequestError` naming the field that is wrong."""
    if (n := fields.integer("n", low=1)) not in (None, 1):
        raise fields.wrong("n", f"is {n}; one answer a request is given", hint="Send the request n times.")
    seed = fields.integer("seed", low=-(2**63), high=2**64 - 1)
    top_p = fields.number("top_p", 1.0, low=0, high=1)
    top_k = fields.integer("top_k", low=-1, high=1_000_000) or 0
    return Sampling(
        sampler=SamplerSettings(
            temperature=fields.number("temperature", engine.default_temperature, low=0, high=2),
            # 0 leaves the best token only; the engine's rule needs a positive mass.
            top_p=max(top_p, 1e-6),
            top_k=max(top_k, 0),
            min_p=fields.number("min_p", 0.0, low=0, high=1),
            repetition_penalty=fields.number("repetition_penalty", 1.0, low=0.01, high=10),
            presence_penalty=fields.number("presence_penalty", 0.0, low=-2, high=2),
            frequency_penalty=fields.number("frequency_penalty", 0.0, low=-2, high=2),
            logit_bias=_logit_bias(fields),
            seed=secrets.randbits(_SEED_BITS) if seed is None else seed % 2**_SEED_BITS,
        ),
        stops=_stops(fields),
        max_new_tokens=_limit(fields, engine.default_max_tokens),
        overflow="slide" if fields.choice("truncation", ("auto", "disabled"), "disabled") == "auto" else "stop",
        save=fields.boolean("store", True),
    )


def check_bias_ids(sampler: SamplerSettings, vocab_size: int) -> None:
    """Raises `RequestError` for a biased id that the model does not have."""
    for token in sampler.logit_bias:
        if token >= vocab_size:
            raise RequestError(
                f"logit_bias names token {token}, the model has {vocab_size} tokens",
                param="logit_bias",
                code="invalid_value",
            )


def _limit(fields: Fields, default: int) -> int:
    """Either name of the token limit works; the smaller counts when both are given."""
    limits = [fields.integer(name, low=1) for name in ("max_completion_tokens", "max_tokens")]
    return min((limit for limit in limits if limit is not None), default=default)


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.raw("stop")
    if given is None:
        return ()
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise fields.wrong("stop", "must be a string or a list of strings")
    if len(stops) > _MAX_STOPS:
        raise fields.wrong("stop", f"has {len(stops)} entries, at most {_MAX_STOPS} are allowed")
    if any(len(s) > _MAX_STOP_CHARS for s in stops):
        raise fields.wrong("stop", f"has an entry with more than {_MAX_STOP_CHARS} characters")
    return tuple(s for s in stops if s)


def _logit_bias(fields: Fields) -> dict[int, float]:
    given = fields.object("logit_bias")
    if given is None:
        return {}
    names = given.as_dict()
    if len(names) > _MAX_BIASES:
        raise fields.wrong("logit_bias", f"has {len(names)} entries, at most {_MAX_BIASES} are allowed")
    biases: dict[int, float] = {}
    for name in names:
        if not (name.isascii() and name.isdecimal() and len(name) <= 9):
            raise fields.wrong("logit_bias", f"has the key {name[:20]!r}, which is no token id")
        biases[int(name)] = given.number(name, 0.0, low=-100, high=100)
    return biases
