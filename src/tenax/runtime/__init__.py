"""The runtime: what every face (terminal, browser, chat app) calls."""

from tenax.runtime.runtime import Runtime

__all__ = ["Runtime"]
