"""The settings file of a long process: `tenax setup`, the page or an editor may change the file at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tenax.config.read import Config
from tenax.config.write import file_version
from tenax.errors import ConfigError

__all__ = ["SettingsFile"]

log = logging.getLogger(__name__)


class SettingsFile:
    """The settings in use. `read` reads the file again."""

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        self.config = config
        self._read = read
        self._seen = file_version(config.file)
        self._refused = ""
        """The last error of the file. The same error is logged once."""

    def read(self) -> None:
        """Read the file. Raises `ConfigError` if the file is invalid."""
        # Get the version before reading the file, so that no later change is missed.
        seen = file_version(self.config.file)
        self.config = self._read()
        self._seen = seen
        self._refused = ""

    def read_if_changed(self) -> bool:
        """Read the file after a change, and return whether there are new settings.

        If the file is invalid, the old settings stay, and the next call tries again: an editor may be half done.
        """
        if self._seen == file_version(self.config.file):
            return False
        try:
            self.read()
        except ConfigError as error:
            if self._refused != str(error):
                self._refused = str(error)
                log.warning(
                    "The changed settings are not used: %s",
                    error,
                    extra={"action": "settings"},
                )
            return False
        return True
