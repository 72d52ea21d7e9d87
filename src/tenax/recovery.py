"""The public path of `tenax.compat.repair`."""

from tenax.compat.repair import repair

__all__ = ["repair"]
