"""The whole configuration, section by section."""

from __future__ import annotations

import msgspec

from magnitude.config.agent import AgentSettings
from magnitude.config.engine import EngineSettings
from magnitude.config.log import LogSettings
from magnitude.config.models import ModelsSettings
from magnitude.config.server import ServerSettings


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Effective settings of one service. Every field has a default: an empty file is a valid configuration."""

    engine: EngineSettings = EngineSettings()
    server: ServerSettings = ServerSettings()
    models: ModelsSettings = ModelsSettings()
    log: LogSettings = LogSettings()
    agent: AgentSettings | None = None
