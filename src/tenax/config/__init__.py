"""The configuration: the settings, reading and editing the file, and the rules for tools."""

from tenax.config.read import Config, Directories, load
from tenax.config.schema import Api, McpSettings, ModelSettings
from tenax.config.secret import Secret, find_secrets, hide_password

__all__ = [
    "Api",
    "Config",
    "Directories",
    "McpSettings",
    "ModelSettings",
    "Secret",
    "find_secrets",
    "hide_password",
    "load",
]
