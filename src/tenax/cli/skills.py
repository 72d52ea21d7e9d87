"""`tenax skills`: the skills that are named to the model, whose they are, and which folders are none."""

from __future__ import annotations

import click
import msgspec

from tenax.cli.frame import pass_config
from tenax.cli.lines import one_line, pad
from tenax.config import Config

__all__ = ["broken", "list_skills"]


@click.command("skills")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for a program.")
@pass_config
def list_skills(config: Config, *, as_json: bool) -> None:
    """Show your skills and those of the folder that tools work in."""
    from tenax.agent.skills import Skills  # noqa: PLC0415  (brings the models along)

    own = config.places.data / "skills"
    found = Skills(own, config.tools_folder).all()
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found, enc_hook=str)))
        return
    if not found:
        click.echo(f"There are no skills. One is a folder in {own} with a SKILL.md.", err=True)
    for each in found:
        whose = "yours" if each.own else "the folder's"
        said = f"not used: {each.problem}" if each.problem else each.description
        click.echo(f"{pad(one_line(each.name), 20)}  {pad(whose, 12)}  {one_line(said)}")


def broken(config: Config) -> dict[str, str]:
    """Folders that should be skills and are none, and why."""
    from tenax.agent.skills import Skills  # noqa: PLC0415  (brings the models along)

    found = Skills(config.places.data / "skills", config.tools_folder).all()
    return {str(each.root.joinpath(*each.parts)): each.problem for each in found if each.problem}
