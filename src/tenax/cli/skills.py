"""`tenax skills`: list the skills, and the unusable skill folders."""

from __future__ import annotations

import click
import msgspec

from tenax.agent.skills import Skill, Skills
from tenax.cli.frame import pass_config
from tenax.cli.lines import pad
from tenax.cli.output import json_option, print_json
from tenax.config import Config
from tenax.text import to_one_line

__all__ = ["list_skills"]


@click.command("skills")
@json_option
@pass_config
def list_skills(config: Config, *, as_json: bool) -> None:
    """List the skills. Shows your own skills and the skills of the tools folder."""
    skills = _all(config)
    if as_json:
        print_json(msgspec.to_builtins(skills, enc_hook=str))
        return
    if not skills:
        own = config.directories.data / "skills"
        click.echo(
            f"No skills. A skill is a folder in {own} with a SKILL.md.", err=True
        )
    for skill in skills:
        owner = "yours" if skill.own else "the folder's"
        about = f"not used: {skill.problem}" if skill.problem else skill.description
        name = pad(to_one_line(skill.name), 20)
        click.echo(f"{name}  {pad(owner, 12)}  {to_one_line(about)}")


def _all(config: Config) -> list[Skill]:
    return Skills(config.directories.data / "skills", config.tools_folder).all()
