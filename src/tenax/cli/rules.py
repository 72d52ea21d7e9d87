"""`tenax rules`: what tools may do without asking, and what they never may. A server that runs heeds a change at once."""

from __future__ import annotations

from typing import Literal

import click

from tenax.cli.frame import pass_config
from tenax.cli.lines import pad, width
from tenax.config import Config
from tenax.config.rules import Rule
from tenax.config.write import add_rule, remove_rule
from tenax.errors import InvalidInput

__all__ = ["lines_of", "nth", "rules"]


def lines_of(found: tuple[Rule, ...]) -> list[str]:
    """The rules for a person, with numbers."""
    columns = max((width(each.tool) for each in found), default=0)
    return [
        f"{n:>2}  {each.verdict:<5}  {pad(each.tool, columns)}  {each.touches}"
        for n, each in enumerate(found, 1)
    ]


def nth(found: tuple[Rule, ...], number: str) -> Rule:
    """The rule with this number in the list."""
    numbered = {str(n): each for n, each in enumerate(found, 1)}
    if number not in numbered:
        raise InvalidInput(
            f"There is no rule {number:.20}.", hint="The list has the numbers."
        )
    return numbered[number]


@click.group("rules", invoke_without_command=True)
@pass_config
def rules(config: Config) -> None:
    """Show what tools may do without asking and what they never may, and change it."""
    if not config.rules:
        click.echo("There are no rules: a tool that changes something asks.", err=True)
    for line in lines_of(config.rules):
        click.echo(line)


@rules.command("add")
@click.argument("verdict", type=click.Choice(["allow", "deny"]))
@click.argument("tool")
@click.argument("pattern", default="*")
@pass_config
def add(
    config: Config, verdict: Literal["allow", "deny"], tool: str, pattern: str
) -> None:
    """Allow or deny a TOOL what fits PATTERN; in both, * ? and [...] are as in a shell. Deny wins."""
    rule = Rule(verdict, tool, pattern)
    add_rule(config, rule)
    click.echo(rule)


@rules.command("remove")
@click.argument("number", type=int)
@pass_config
def remove(config: Config, number: int) -> None:
    """Take back the rule with this NUMBER in the list."""
    gone = nth(config.rules, str(number))
    remove_rule(config, gone)
    click.echo(f"Taken back: {gone}")
