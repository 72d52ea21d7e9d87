"""The log of a process that serves, `tenax serve` or `tenax gateway`."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from tenax.config import Config
from tenax.web.connections import FewLines

__all__ = ["log_to"]

_LOG_BYTES = 5_000_000


def log_to(config: Config, file: Path) -> None:
    """Log into a file readable only by the person. Nobody reads a server's stderr, and stderr may be a terminal."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        handler: logging.Handler = RotatingFileHandler(
            file, maxBytes=_LOG_BYTES, backupCount=3, encoding="utf-8"
        )
    except OSError:
        # A full disk must not prevent the start of the page.
        handler = logging.NullHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    handler.addFilter(FewLines())
    logging.basicConfig(level=config.log.upper(), handlers=[handler])
    # Failed log writes must not fill the terminal with error reports.
    logging.raiseExceptions = False
    # Both libraries log whole URLs at lower levels.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
