"""Settings: one typed section a file, read from one YAML file and `conf.d/`."""

from magnitude.config.address import TcpAddress, parse_listen
from magnitude.config.agent import AgentSettings, ToolSettings
from magnitude.config.engine import EngineSettings
from magnitude.config.log import LogSettings
from magnitude.config.models import ModelsSettings
from magnitude.config.server import ApiKey, ServerSettings
from magnitude.config.settings import Settings

__all__ = [
    "AgentSettings",
    "ApiKey",
    "EngineSettings",
    "LogSettings",
    "ModelsSettings",
    "ServerSettings",
    "Settings",
    "TcpAddress",
    "ToolSettings",
    "parse_listen",
]
