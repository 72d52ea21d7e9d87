"""Stores to import to."""

from __future__ import annotations

from tests.archive.conftest import new_url, source, target

__all__ = ["new_url", "source", "target"]
