"""`/api/setup`: which model answers, what there is to choose from, and connecting another."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from tenax.config import ModelSettings, Secret, shown
from tenax.config import write as settings
from tenax.errors import InvalidInput
from tenax.journal import LOCAL_USER
from tenax.models import discovery as found
from tenax.models.base import Failure
from tenax.models.http import is_loopback
from tenax.models.practice.practice import installed
from tenax.web.api import endpoint
from tenax.web.house import house_of, user_of

Url = Annotated[str, Meta(max_length=2000)]
Key = Annotated[str, Meta(max_length=2000)]


class Answers(msgspec.Struct, frozen=True):
    """The model that answers."""

    label: str
    name: str
    kind: Literal["practice", "script", "local", "cloud"]
    url: str = ""


class Offered(msgspec.Struct, frozen=True):
    """A model that is there to be used."""

    id: str
    title: str
    detail: str
    kind: str


class Setup(msgspec.Struct, frozen=True):
    """What is set up, and what could be."""

    user: str
    version: str
    model: Answers | None
    offers: list[Offered]
    practice: bool
    file: str
    terminal: str
    labels: list[str]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An offer that is taken. `name` is one of its models, where it has several."""

    offer: Annotated[str, Meta(min_length=1, max_length=300)]
    name: Annotated[str, Meta(max_length=300)] = ""


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where models are, and the key for it."""

    api: Literal["openai", "anthropic"]
    url: Url
    key: Key = ""


class Connection(Place, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model there."""

    name: Annotated[str, Meta(min_length=1, max_length=300)]


class Names(msgspec.Struct, frozen=True):
    """Models."""

    models: list[str]


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the models that are set up."""

    label: Annotated[str, Meta(min_length=1, max_length=100)]


@endpoint("GET", "/api/setup")
async def get_setup(call: Request) -> Setup:
    """What is set up, and what there is on this machine to be used."""
    return await _setup(call)


@endpoint("POST", "/api/setup/use", owner=True)
async def use_offer(call: Request, body: Choice) -> Setup:
    """Answer with this offer from now on. It is tried first."""
    offer = next(
        (each for each in await found.find(os.environ) if each.id == body.offer), None
    )
    if offer is None:
        raise InvalidInput(
            "This is not there any more.", hint="Look again at what there is."
        )
    ready = await found.use(offer, os.environ, name=body.name)
    return await _taken(call, ready, None)


@endpoint("POST", "/api/setup/models", owner=True)
async def list_models(body: Place) -> Names:
    """The models at an address."""
    listed = await found.models_at(body.api, body.url, _secret(body))
    if isinstance(listed, Failure):
        raise InvalidInput(listed.message, hint=listed.hint)
    return Names(listed)


@endpoint("POST", "/api/setup/connect", owner=True)
async def connect_model(call: Request, body: Connection) -> Setup:
    """Answer with the model at this address from now on. It is tried first; what fails is not kept."""
    ready = await found.reach(body.api, body.url, body.name, _secret(body))
    return await _taken(call, ready, body.key.strip() or None)


@endpoint("POST", "/api/setup/choose", owner=True)
async def choose_label(call: Request, body: Label) -> Setup:
    """Answer with another of the models that are set up."""
    house = house_of(call)
    if body.label not in house.config.models:
        raise InvalidInput(f"There is no model {body.label!r} in the configuration.")
    await house.change(settings.choose_model, body.label)
    return await _setup(call)


def _secret(place: Place) -> Secret | None:
    return Secret(place.key, "the field for the key") if place.key.strip() else None


async def _taken(call: Request, ready: found.Ready | Failure, key: str | None) -> Setup:
    if isinstance(ready, Failure):
        raise InvalidInput(ready.message, hint=ready.hint)
    await house_of(call).change(settings.add_model, ready.label, ready.values, key=key)
    return await _setup(call)


async def _setup(call: Request) -> Setup:
    house = house_of(call)
    await house.look_at_settings()
    config = house.config
    owner = user_of(call) == LOCAL_USER
    offers = await found.find(os.environ) if owner else []
    return Setup(
        user=user_of(call),
        version=metadata.version("tenax"),
        model=_answers(config.models[config.model]) if config.model else None,
        offers=[
            Offered(each.id, each.title, each.detail, each.kind) for each in offers
        ],
        practice=installed(),
        file=_at_home(config.file) if owner else "",
        terminal=house.terminal if owner else "",
        labels=sorted(config.models) if owner else [],
    )


def _at_home(file: Path) -> str:
    """A path as people write it."""
    try:
        return f"~/{file.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(file)


def _answers(model: ModelSettings) -> Answers:
    if model.api in {"practice", "script"}:
        return Answers(model.label, model.name, model.api)
    kind: Literal["local", "cloud"] = "local" if is_loopback(model.url) else "cloud"
    return Answers(model.label, model.name, kind, shown(model.url))
