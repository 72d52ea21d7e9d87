"""Check the servers of the configured models."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from tenax.config import Config, ModelSettings
from tenax.doctor.findings import ModelState, State
from tenax.errors import ConfigError
from tenax.models import Failure
from tenax.models.discovery import fetch_models
from tenax.models.practice.practice import installed

__all__ = ["check_models"]

ANSWER_SECONDS_MAX: Final = 5.0
_AWAY: Final = frozenset({"away", "silent", "dropped"})


async def check_models(config: Config) -> list[ModelState]:
    """Request the list of models from every server at the same time. The request costs no tokens."""
    settings = [config.models[label] for label in sorted(config.models)]
    states = await asyncio.gather(*(_check(model) for model in settings))
    return [state for state in states if state is not None]


async def _check(model: ModelSettings) -> ModelState | None:
    if model.api == "script":
        return None
    if model.api == "practice":
        return _check_practice(model)
    server = urlsplit(model.url).netloc.rpartition("@")[2]
    try:
        if model.key is not None:
            model.key.reveal()
    except ConfigError as error:
        return ModelState(model.label, model.name, server, "key", str(error))
    result = await fetch_models(
        model.api, model.url, model.key, seconds=ANSWER_SECONDS_MAX
    )
    if not isinstance(result, Failure):
        is_listed = any(entry.id == model.name for entry in result)
        detail = "" if is_listed else "The server does not list this model."
        return ModelState(model.label, model.name, server, "answers", detail)
    if result.why == "malformed":
        # Some servers have no list of models.
        detail = "The server lists no models."
        return ModelState(model.label, model.name, server, "answers", detail)
    detail = f"{result.message} {result.hint}".strip()
    state: State = "refused"
    if result.why == "key":
        state = "key"
    elif result.why in _AWAY:
        state = "away"
    return ModelState(model.label, model.name, server, state, detail)


def _check_practice(model: ModelSettings) -> ModelState:
    if installed():
        return ModelState(model.label, "practice", "", "answers")
    detail = "The practice model is not installed."
    return ModelState(model.label, "practice", "", "away", detail)
