"""`/api/setup`: the active model, the available models, and connecting another model."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta
from starlette.requests import Request

from tenax.config import ModelSettings, Secret, hide_password, write
from tenax.errors import InvalidInput
from tenax.journal import LOCAL_USER
from tenax.models import discovery
from tenax.models.base import Failure
from tenax.models.http import is_loopback
from tenax.models.practice.practice import installed
from tenax.models.presets import PRESETS, Preset
from tenax.web.api import RequestBody, ResponseBody, endpoint
from tenax.web.server_state import state_of, user_of

Url = Annotated[str, Meta(max_length=2000)]
Key = Annotated[str, Meta(max_length=2000)]


class Answers(ResponseBody):
    """A model of the settings."""

    label: str
    name: str
    kind: Literal["practice", "script", "local", "cloud"]
    url: str = ""


class Offered(ResponseBody):
    """A model found on the machine or through a key in the environment."""

    id: str
    title: str
    detail: str
    kind: str


class Setup(ResponseBody):
    """The active model, and the models to choose from."""

    user: str
    version: str
    model: Answers | None
    offers: list[Offered]
    practice: bool
    chat_apps: bool
    """Whether Tenax has an account in a chat app."""
    file: str
    terminal: str
    labels: list[str]
    models: list[Answers]
    """All models of the settings, by label. Empty for users other than the owner."""
    presets: list[Preset]
    """Providers and local servers to connect. Empty for users other than the owner."""


class Choice(RequestBody):
    """An offer to use. `name` selects a model of the offer."""

    offer: Annotated[str, Meta(min_length=1, max_length=300)]
    name: Annotated[str, Meta(max_length=300)] = ""


class ModelServer(RequestBody, kw_only=True):
    """A model server, and its key."""

    api: Literal["openai", "anthropic"]
    url: Url
    key: Key = ""


class Connection(ModelServer, kw_only=True):
    """A model on a server."""

    name: Annotated[str, Meta(min_length=1, max_length=300)]


class Names(ResponseBody):
    """The names of models."""

    models: list[str]


class Label(RequestBody):
    """The label of a model in the settings."""

    label: Annotated[str, Meta(min_length=1, max_length=100)]


@endpoint("GET", "/api/setup")
async def get_setup(call: Request) -> Setup:
    """Return the active model, and the models found."""
    return await _setup(call)


@endpoint("POST", "/api/setup/use", owner=True)
async def use_offer(call: Request, body: Choice) -> Setup:
    """Use an offered model from now on, after a test call."""
    offer = next(
        (
            offer
            for offer in await discovery.find_offers(os.environ)
            if offer.id == body.offer
        ),
        None,
    )
    if offer is None:
        raise InvalidInput(
            "This model is no longer available.",
            hint="Reload the page and choose again.",
        )
    ready = await discovery.use_offer(offer, os.environ, name=body.name)
    return await _taken(call, ready, None)


@endpoint("POST", "/api/setup/models", owner=True)
async def list_models(body: ModelServer) -> Names:
    """List the models of a server."""
    listed = await discovery.list_models(body.api, body.url, _secret(body))
    if isinstance(listed, Failure):
        raise InvalidInput(listed.message, hint=listed.hint)
    return Names(listed)


@endpoint("POST", "/api/setup/connect", owner=True)
async def connect_model(call: Request, body: Connection) -> Setup:
    """Connect a model and use it from now on, after a test call. A model failing the test is not saved."""
    ready = await discovery.reach_model(body.api, body.url, body.name, _secret(body))
    return await _taken(call, ready, body.key.strip() or None)


@endpoint("POST", "/api/setup/choose", owner=True)
async def choose_label(call: Request, body: Label) -> Setup:
    """Switch to another model of the settings."""
    state = state_of(call)
    if body.label not in state.config.models:
        raise InvalidInput(f"The settings have no model {body.label!r}.")
    await state.change(write.choose_model, body.label)
    return await _setup(call)


def _secret(server: ModelServer) -> Secret | None:
    return Secret(server.key, "the field for the key") if server.key.strip() else None


async def _taken(
    call: Request, ready: discovery.Ready | Failure, key: str | None
) -> Setup:
    if isinstance(ready, Failure):
        raise InvalidInput(ready.message, hint=ready.hint)
    await state_of(call).change(write.add_model, ready.label, ready.values, key=key)
    return await _setup(call)


async def _setup(call: Request) -> Setup:
    state = state_of(call)
    await state.look_at_settings()
    config = state.config
    owner = user_of(call) == LOCAL_USER
    offers = await discovery.find_offers(os.environ) if owner else []
    return Setup(
        user=user_of(call),
        version=metadata.version("tenax"),
        model=_answers(config.models[config.model]) if config.model else None,
        offers=[
            Offered(offer.id, offer.title, offer.detail, offer.kind) for offer in offers
        ],
        practice=installed(),
        chat_apps=bool(config.channels),
        file=path_at_home(config.file) if owner else "",
        terminal=state.terminal if owner else "",
        labels=sorted(config.models) if owner else [],
        models=[_answers(config.models[label]) for label in sorted(config.models)]
        if owner
        else [],
        presets=list(PRESETS) if owner else [],
    )


def path_at_home(file: Path) -> str:
    """Return a path with ~ for the home folder."""
    try:
        return f"~/{file.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(file)


def _answers(model: ModelSettings) -> Answers:
    if model.api in {"practice", "script"}:
        return Answers(model.label, model.name, model.api)
    kind: Literal["local", "cloud"] = "local" if is_loopback(model.url) else "cloud"
    return Answers(model.label, model.name, kind, hide_password(model.url))
