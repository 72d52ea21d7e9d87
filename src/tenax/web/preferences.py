"""`/api/preferences`: settings of the person for the page, the same in every browser."""

from __future__ import annotations

from typing import Any

from tenax.assembly import Runtime
from tenax.web.api import ResponseBody, endpoint


class Preferred(ResponseBody):
    """The preferences: JSON values by name."""

    preferences: dict[str, Any]


@endpoint("GET", "/api/preferences")
async def get_preferences(runtime: Runtime) -> Preferred:
    """Return the preferences."""
    return Preferred(await runtime.choices.preferences())


@endpoint("PATCH", "/api/preferences")
async def change_preferences(runtime: Runtime, body: dict[str, Any]) -> Preferred:
    """Set the preferences in the body. The value null removes a preference."""
    await runtime.choices.change_preferences(body)
    return Preferred(await runtime.choices.preferences())
