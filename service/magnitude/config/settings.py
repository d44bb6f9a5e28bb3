"""The whole configuration, section by section."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from magnitude.config.agent import AgentSettings
from magnitude.config.board import BoardSettings
from magnitude.config.engine import EngineSettings
from magnitude.config.kv import KvSettings
from magnitude.config.log import LogSettings
from magnitude.config.memory import MemorySettings
from magnitude.config.models import ModelsSettings
from magnitude.config.policy import PolicySettings
from magnitude.config.power import PowerSettings
from magnitude.config.records import RecordsSettings
from magnitude.config.schedule import ScheduleSettings
from magnitude.config.server import ServerSettings
from magnitude.config.thermal import ThermalSettings


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Effective settings of one service. Every field has a default: an empty file is a valid configuration."""

    engine: Annotated[EngineSettings, Meta(description="What runs the model, and how.")] = EngineSettings()
    server: Annotated[ServerSettings, Meta(description="Who may talk to the service, where, and how much.")] = (
        ServerSettings()
    )
    models: Annotated[ModelsSettings, Meta(description="Where models lie, and their further names.")] = (
        ModelsSettings()
    )
    kv: Annotated[KvSettings, Meta(description="The memory of conversations.")] = KvSettings()
    memory: Annotated[MemorySettings, Meta(description="What is done when memory gets short.")] = MemorySettings()
    board: Annotated[BoardSettings, Meta(description="Which board this is, and how often it is looked at.")] = (
        BoardSettings()
    )
    thermal: Annotated[ThermalSettings, Meta(description="What is done about heat, and from when on.")] = (
        ThermalSettings()
    )
    power: Annotated[
        PowerSettings, Meta(description="What is done about a battery that runs low and a supply that is too weak.")
    ] = PowerSettings()
    policy: Annotated[PolicySettings, Meta(description="How the strategy loop learns, and within which bounds.")] = (
        PolicySettings()
    )
    schedule: Annotated[ScheduleSettings, Meta(description="Who waits for whom.")] = ScheduleSettings()
    records: Annotated[RecordsSettings, Meta(description="What is written down of tasks and failures.")] = (
        RecordsSettings()
    )
    log: Annotated[LogSettings, Meta(description="How much is logged, and in which shape.")] = LogSettings()
    agent: Annotated[AgentSettings | None, Meta(description="The agent run time; not active yet.")] = None
