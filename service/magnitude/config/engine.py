"""`engine:` what runs the model, and how."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model_path: Annotated[
        str | None,
        Meta(
            description="A model folder, or the .onnx file inside one; relative to the file that this key stands in. "
            "Unset: the first chat model of models.folder."
        ),
    ] = None
    max_batch_size: Annotated[int, Meta(ge=1, le=64, description="Most generations that are computed together.")] = 4
    prefill_chunk_size: Annotated[
        int,
        Meta(
            ge=1,
            le=4096,
            description="Tokens of a prompt that one graph run takes in. Larger prefills faster, smaller lets "
            "running answers and cancelled requests wait less.",
        ),
    ] = 128
    max_inter_token_ms: Annotated[
        float,
        Meta(
            gt=0,
            le=10_000,
            description="While answers run, a prompt enters in pieces that keep the time between two of their "
            "tokens below this.",
        ),
    ] = 50.0
    speculation: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="Whether tokens are drafted ahead from the prompt or by draft_model and verified together; "
            "it stops where it does not pay. auto drafts only where that gives the very text of plain decoding "
            "(measured at load; so with INT8 KV), on also with float KV."
        ),
    ] = "auto"
    draft_model: Annotated[
        str | None, Meta(description="Name of a small model with the same tokenizer that drafts ahead.")
    ] = None
    graph: Annotated[
        Literal["serving", "measured", "kernels"],
        Meta(
            description="Which graph a decoder is loaded with. serving: ONNX Runtime's own operators; kernels: the "
            "kernel plan, faster and with the weights in memory once, and the serving graph where there are no "
            "kernels or the plan is not right; measured: the serving graph, and the strategy loop may change to the "
            "kernel plan beside it, even within an answer."
        ),
    ] = "serving"
    self_optimize: Annotated[
        bool,
        Meta(
            description="The strategy loop: how work is run is chosen by what is measured. Off: everything runs as "
            "configured, and nothing of the loop is started."
        ),
    ] = True
    optimization_window: Annotated[
        int,
        Meta(
            ge=20,
            le=100_000,
            description="Samples of both sides that the strategy loop compares before it switches. 10 made "
            "strategies oscillate, 50 worked, 100 is recommended where the load changes seldom: it learns half as "
            "fast.",
        ),
    ] = 50
    context_length: Annotated[
        int,
        Meta(
            ge=64,
            le=1_048_576,
            description="Positions of a KV slot (prompt and answer together). The model's own limit is the bound.",
        ),
    ] = 8192
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=256,
            description="Threads of a graph run. 0: the fast cores that this process may use, within its CPU quota.",
        ),
    ] = 0
    default_max_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="New tokens when a request names no limit: small models do best with short answers.",
        ),
    ] = 256
    default_temperature: Annotated[
        float, Meta(ge=0, le=2, description="Temperature when a request names none; 0 always takes the best token.")
    ] = 0.3
    spare: Annotated[
        Literal["off", "warm", "hot"],
        Meta(
            description="The engine that stands by for the one that serves, while memory allows. warm: started, with "
            "no model; hot: with the models of the start, which take their memory a second time; off: none."
        ),
    ] = "warm"
    step_deadline_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="No graph run may take longer: an engine past it is taken for hung and replaced.",
        ),
    ] = 60.0
