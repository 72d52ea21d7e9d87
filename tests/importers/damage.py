"""Random damage of a valid file of another program: the values of a JSON tree replaced, removed or repeated."""

from __future__ import annotations

import random
from typing import Any

ODD: tuple[Any, ...] = (None, True, False, 0, -1, 10**400, 1.5, "", "x", "\ud800", "a\0b", [], {}, [[]], {"a": {"b": []}}, ["x", 7, None],
                        {"type": 3}, "2025-99-99T00:00:00Z", [{"type": "text", "text": 5}], {"id": {}})  # fmt: skip
"""Values that stand where another type is expected."""


def damage(value: Any, chance: random.Random, share: float) -> Any:
    """Return a copy of a JSON value in which about `share` of the values are odd, missing or repeated."""
    if chance.random() < share:
        return chance.choice(ODD)
    if isinstance(value, dict):
        kept = [key for key in value if chance.random() >= share]
        return {key: damage(value[key], chance, share) for key in kept}
    if isinstance(value, list):
        items = [
            damage(item, chance, share) for item in value if chance.random() >= share
        ]
        return items + items[-1:] if chance.random() < share else items
    return value
