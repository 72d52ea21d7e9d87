"""`tenax rules`: list and change the rules for tools. A running server uses a change at once."""

from __future__ import annotations

from typing import Literal

import click
from rich.cells import cell_len

from tenax.cli.frame import pass_config
from tenax.cli.lines import pad
from tenax.config import Config
from tenax.config.rules import Rule
from tenax.config.write import add_rule, remove_rule
from tenax.errors import InvalidInput

__all__ = ["lines_of", "nth", "rules"]


def lines_of(rules: tuple[Rule, ...]) -> list[str]:
    """Return a numbered line per rule."""
    columns = max((cell_len(rule.tool) for rule in rules), default=0)
    return [
        f"{number:>2}  {rule.verdict:<5}  {pad(rule.tool, columns)}  {rule.touches}"
        for number, rule in enumerate(rules, 1)
    ]


def nth(rules: tuple[Rule, ...], number: str) -> Rule:
    """Return the rule with a number in the list. Raises `InvalidInput` if no rule has the number."""
    numbered = {str(number): rule for number, rule in enumerate(rules, 1)}
    if number not in numbered:
        raise InvalidInput(
            f"No rule has the number {number:.20}.",
            hint="List the rules to see their numbers.",
        )
    return numbered[number]


@click.group("rules", invoke_without_command=True)
@pass_config
def rules(config: Config) -> None:
    """Show and change the rules for tools. A rule allows a tool without asking, or denies it."""
    if not config.rules:
        click.echo("No rules. Tenax asks before it changes anything.", err=True)
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
    """Allow or deny a TOOL for targets that match PATTERN.

    Both may use * ? and [...] as in a shell. Deny overrides allow.
    """
    rule = Rule(verdict, tool, pattern)
    add_rule(config, rule)
    click.echo(rule)


@rules.command("remove")
@click.argument("number", type=int)
@pass_config
def remove(config: Config, number: int) -> None:
    """Remove the rule with this NUMBER in the list."""
    rule = nth(config.rules, str(number))
    remove_rule(config, rule)
    click.echo(f"Removed: {rule}")
