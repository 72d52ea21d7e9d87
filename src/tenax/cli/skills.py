"""`tenax skills`: the skills that are named to the model, whose they are, and which folders are none."""

from __future__ import annotations

import click
import msgspec

from tenax.agent.skills import Skill, Skills
from tenax.cli.frame import json_option, pass_config, print_json
from tenax.cli.lines import one_line, pad
from tenax.config import Config

__all__ = ["broken", "list_skills"]


@click.command("skills")
@json_option
@pass_config
def list_skills(config: Config, *, as_json: bool) -> None:
    """Show your skills and those of the folder that tools work in."""
    found = _all(config)
    if as_json:
        print_json(msgspec.to_builtins(found, enc_hook=str))
        return
    if not found:
        own = config.places.data / "skills"
        click.echo(
            f"There are no skills. One is a folder in {own} with a SKILL.md.", err=True
        )
    for each in found:
        whose = "yours" if each.own else "the folder's"
        said = f"not used: {each.problem}" if each.problem else each.description
        click.echo(
            f"{pad(one_line(each.name), 20)}  {pad(whose, 12)}  {one_line(said)}"
        )


def broken(config: Config) -> dict[str, str]:
    """Folders that should be skills and are none, and why."""
    return {
        str(each.root.joinpath(*each.parts)): each.problem
        for each in _all(config)
        if each.problem
    }


def _all(config: Config) -> list[Skill]:
    return Skills(config.places.data / "skills", config.tools_folder).all()
