"""The configuration: reading it, changing its file, and the rules for tools."""

from tenax.config.read import (
    Api,
    Config,
    McpSettings,
    ModelSettings,
    Secret,
    load,
    secrets,
    shown,
)

__all__ = [
    "Api",
    "Config",
    "McpSettings",
    "ModelSettings",
    "Secret",
    "load",
    "secrets",
    "shown",
]
