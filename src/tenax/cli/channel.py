"""`tenax channel`: connect accounts of chat apps, show their state, and handle messages that did not go out.

No command prints the text of a message or a token, except a secret that Tenax has made a moment ago.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import click
import msgspec

from tenax.channels.platforms import (
    HOOKS,
    PLATFORMS,
    check_people,
    connect,
    platform_name,
    sign_in,
)
from tenax.channels.rows import (
    FAILED_STATES,
    OPEN_STATES,
    ChannelRows,
    ChatPerson,
    Outgoing,
)
from tenax.channels.states import AccountState, State, read_states
from tenax.cli.frame import pass_config
from tenax.cli.lines import minute, pad, short_time
from tenax.cli.output import json_option, print_json
from tenax.clock import rfc3339
from tenax.config import Config, Secret
from tenax.config.read import check_values
from tenax.config.schema import ChannelSettings, Platform
from tenax.config.write import set_channel
from tenax.errors import ConfigError, InvalidInput
from tenax.journal import LOCAL_USER, exists
from tenax.journal import open as open_journal
from tenax.schedules.parse import describe_duration
from tenax.text import to_one_line

__all__ = [
    "account_name",
    "channel",
    "count_failed",
    "describe_state",
    "join_columns",
    "labels_of",
    "open_rows",
]

FAILED_COMMAND: Final = "tenax channel failed"
_TOKEN_CHARS_MAX: Final = 1000
_ID_CHARS: Final = 8
_ID_CHARS_MIN: Final = 4
_COLUMN: Final = 13
_EXAMPLE: Final = """\
secret=whsec_...   # the secret
id=msg_$(date +%s) at=$(date +%s)
body='{{"type": "message.created", "data": {{"text": "Hello"}}}}'
key=$(printf %s "${{secret#whsec_}}" | base64 -d | od -An -v -tx1 | tr -d ' \\n')
signature=$(printf %s "$id.$at.$body" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64)
curl {address} --data "$body" -H "content-type: application/json" -H "webhook-id: $id" \\
  -H "webhook-timestamp: $at" -H "webhook-signature: v1,$signature"
"""
_MINUTE: Final = 60

_STATES: Final[dict[State, str]] = {
    "off": "off: neither `tenax serve` nor `tenax gateway` is running",
    "starting": "connecting",
    "connected": "connected",
    "deaf": "deaf: no messages come in. Tenax connects again by itself",
    "away": "away: the chat app cannot be reached. Tenax tries again by itself",
    "refused": "refused: the token is not valid. To set a new one: tenax channel add {platform} --label {label}",
    "elsewhere": "elsewhere: another program receives the messages of this account. Stop the other program",
    "broken": "broken: the account cannot be used",
}
_UNITS: Final = {
    "a": "answer",
    "q": "question",
    "m": "copy of a message",
    "e": "end of an answer",
    "f": "file",
    "n": "notice",
}
"""What a delivery is, by the beginning of its unit (see `tenax.channels.units`)."""


# -- for the other commands ------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_rows(config: Config) -> Iterator[ChannelRows]:
    """Open the rows of the chat apps. A missing store is not created, and counts as empty."""
    url = config.store_url if exists(config.store_url) else "memory:"
    with open_journal(
        url,
        user=LOCAL_USER,
        witness=config.directories.witness,
        timing=config.timing,
    ) as journal:
        yield ChannelRows(journal)


def describe_state(account: AccountState) -> str:
    """Return the state of an account in words, without a full stop."""
    words = _STATES[account.state]
    return words.format(platform=account.platform, label=account.label)


def count_failed(account: AccountState) -> str:
    """Return how many messages of an account are uncertain or dead, such as `1 uncertain, 2 dead`; "" if none is."""
    counts = account.counts
    found = [
        f"{counts[state]} {state}"
        for state in sorted(FAILED_STATES, reverse=True)
        if counts.get(state)
    ]
    return ", ".join(found)


def account_name(account: AccountState) -> str:
    """Return the name of the bot, or the platform until the name is known."""
    return to_one_line(account.name) or platform_name(account.platform)


def labels_of(config: Config, rows: ChannelRows) -> dict[str, str]:
    """Return the label of every account that was served, by PLATFORM:ID."""
    labels = {}
    for label in config.channels:
        account = rows.value(f"label:{label}", "account")
        if account:
            labels[account] = label
    return labels


def join_columns(*fields: str) -> str:
    """Return the fields that are not empty as a line without control characters."""
    return "  ".join(to_one_line(field) for field in fields if field)


# -- tenax channel ---------------------------------------------------------------------------------------------


@click.group("channel", invoke_without_command=True)
@json_option
@pass_config
def channel(config: Config, *, as_json: bool) -> None:
    """Connect chat apps, and show their state."""
    _list(config, as_json=as_json)


@channel.command("list")
@json_option
@pass_config
def list_all(config: Config, *, as_json: bool) -> None:
    """List the accounts with their state, their last messages, and what could not be delivered."""
    _list(config, as_json=as_json)


def _list(config: Config, *, as_json: bool) -> None:
    with open_rows(config) as rows:
        accounts = read_states(config, rows)
        now = rows.now_us()
    if as_json:
        print_json([_to_json(account, now) for account in accounts])
        return
    if not accounts:
        click.echo(
            "No chat app is connected. To connect one: tenax channel add telegram",
            err=True,
        )
    for account in accounts:
        click.echo(
            f"{account.label}  {account_name(account)}  {describe_state(account)}"
        )
        for name, value in _details(account, now):
            click.echo(f"    {pad(name, _COLUMN)}  {to_one_line(value)}")


def _details(account: AccountState, now: int) -> Iterator[tuple[str, str]]:
    if account.error:
        yield "error", account.error
    yield "messages in", _direction(account.received_at, account.promise_in, now)
    yield "messages out", _direction(account.sent_at, account.promise_out, now)
    if account.oldest_unsent_at:
        count = sum(account.counts.get(state, 0) for state in OPEN_STATES)
        since = short_time(account.oldest_unsent_at, now)
        seconds = _lag_seconds(account, now)
        lag = describe_duration(seconds) if seconds >= _MINUTE else f"{seconds} seconds"
        yield "not sent yet", f"{count}, the oldest since {since} ({lag})"
    if account.counts.get("delivered"):
        yield "delivered", f"{account.counts['delivered']}"
    failed = count_failed(account)
    if failed:
        yield "failed", f"{failed}. To see them: {FAILED_COMMAND}"


def _direction(at: int, promise: str, now: int) -> str:
    last = f"last {short_time(at, now)}" if at else "none yet"
    return f"{last} (promise: {promise})" if promise else last


def _lag_seconds(account: AccountState, now: int) -> int:
    if not account.oldest_unsent_at:
        return 0
    return max(now - account.oldest_unsent_at, 0) // 1_000_000


def _to_json(account: AccountState, now: int) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(account)
    for name in ("heard_at", "received_at", "sent_at", "oldest_unsent_at"):
        fields[name] = rfc3339(fields[name]) if fields[name] else None
    fields["lag_seconds"] = _lag_seconds(account, now)
    return fields


# -- connect and remove ----------------------------------------------------------------------------------------


@channel.command("add")
@click.argument("platform", type=click.Choice(sorted(PLATFORMS)))
@click.option(
    "--label",
    metavar="NAME",
    help="The name of the account in the settings. Default: the name of the chat app.",
)
@click.option(
    "--allow",
    metavar="ID",
    multiple=True,
    help="Let the person with this id of the chat app talk without a code, as a user of their own. "
    "Other people then get no code and no answer. Repeatable.",
)
@click.option(
    "--url",
    metavar="URL",
    help="Matrix: the address of the homeserver. Telegram: the address of a Bot API server of your own. Webhook: the "
    "address that gets the answers.",
)
@click.option(
    "--user", metavar="ID", help="Matrix: the account, such as @tenax:example.org."
)
@pass_config
def add(
    config: Config,
    platform: str,
    label: str | None,
    allow: tuple[str, ...],
    url: str | None,
    user: str | None,
) -> None:
    """Connect an account of a chat app, or give an account a new token.

    Asks for the token, or reads the token from stdin if stdin is not a terminal. Nothing is saved before the chat app
    has accepted the token. Matrix takes a password as well: it is used once, and is not saved. For a webhook, Tenax makes
    a secret and prints it if none is entered.
    """
    label = label or platform
    known = config.channels.get(label)
    values: dict[str, Any] = {"platform": platform}
    has_steps = PLATFORMS[cast("Platform", platform)].signs_in and sys.stdin.isatty()
    if has_steps:
        click.echo(PLATFORMS[cast("Platform", platform)].steps)
    url = url or (known.url if known else None)
    user = user or (known.user if known else None)
    if has_steps:
        url = url or click.prompt("Address of the homeserver")
        user = user or click.prompt("User id")
    if url:
        values["url"] = url
    if user:
        values["user"] = user
    if known is not None and known.device and known.user == user:
        values["device"] = known.device
    allowed = check_people(cast("Platform", platform), allow) or (
        known.allow if known else ()
    )
    if allowed:
        values["allow"] = list(allowed)
    # Before the person is asked for a token.
    check_values(config, {"channels": {label: values}}, {})
    info = PLATFORMS[cast("Platform", platform)]
    secret, is_new = _read_token(cast("Platform", platform))
    click.echo("Checking the token ...", err=True)
    found, token = asyncio.run(sign_in(values, secret))
    values |= found
    settings = ChannelSettings(
        label=label,
        platform=cast("Platform", platform),
        token=Secret(token, "what was entered"),
        url=url,
        user=values.get("user"),
        device=values.get("device"),
        allow=allowed,
    )
    name = asyncio.run(_check_account(config, settings))
    set_channel(config, label, values, token=token)
    if info.takes_requests:
        _say_how_to_send(config, label, token if is_new else "")
    else:
        _say_next_steps(config, label, name, has_list=bool(allowed))


def _read_token(platform: Platform) -> tuple[str, bool]:
    """Return the token, and whether Tenax has made it."""
    info = PLATFORMS[platform]
    if sys.stdin.isatty():
        if not info.signs_in:
            click.echo(info.steps)
        default = "" if info.makes_token else None
        token = click.prompt(
            f"{info.asks_for} (not shown)",
            hide_input=True,
            default=default,
            show_default=False,
        )
    else:
        line = sys.stdin.buffer.readline(_TOKEN_CHARS_MAX)
        token = line.decode("utf-8", "replace")
    token = str(token).strip()
    if not token and info.makes_token is not None:
        return info.makes_token(), True
    if not token:
        raise InvalidInput(
            "No token was entered.",
            hint=f"Run this in a terminal, or: tenax channel add {platform} < FILE",
        )
    return token, False


async def _check_account(config: Config, settings: ChannelSettings) -> str:
    """Sign in. Return the name of the bot. Raises an error if the bot is connected under another label."""
    channel = connect(settings)
    try:
        for label, other in config.channels.items():
            account = await _find_account(other)
            if label != settings.label and account == channel.account:
                raise InvalidInput(
                    f"This bot is connected already, as {label}.",
                    hint=f"To give it a new token: tenax channel add {settings.platform} --label {label}",
                )
            if label == settings.label and account not in {"", channel.account}:
                raise InvalidInput(
                    f"{label} is connected to another bot.",
                    hint=f"Choose another name with --label, or first run: tenax channel remove {label}",
                )
        await channel.open()
        return to_one_line(channel.name)
    finally:
        await channel.close()


async def _find_account(settings: ChannelSettings) -> str:
    """Return PLATFORM:ID of an account in the settings, or "" if its token is missing or malformed."""
    try:
        channel = connect(settings)
    except (ConfigError, InvalidInput):
        return ""
    await channel.close()
    return channel.account


def _say_how_to_send(config: Config, label: str, new_secret: str) -> None:
    """Say how a program sends messages. A new secret is shown only here."""
    host = f"[{config.serve.host}]" if ":" in config.serve.host else config.serve.host
    page = config.serve.url or f"http://{host}:{config.serve.port}"
    address = f"{page}{HOOKS}{label}"
    click.echo(f"Saved in {config.file} as [channels.{label}].\n")
    if new_secret:
        click.echo(f"  Secret, shown only now:  {new_secret}")
    click.echo(f"  Address for messages:    {address}\n")
    click.echo(
        "  1. Start `tenax serve`, unless it is running. It finds the webhook by"
    )
    click.echo("     itself. `tenax gateway` takes no messages of webhooks.")
    click.echo("  2. Let your program send messages to the address, or try it now:\n")
    click.echo(_EXAMPLE.format(address=address))
    click.echo("Whoever has the secret can talk to Tenax as you.", err=True)


def _say_next_steps(config: Config, label: str, name: str, *, has_list: bool) -> None:
    click.echo(f"Connected {name}. Saved in {config.file} as [channels.{label}].\n")
    click.echo("  1. Start `tenax serve` or `tenax gateway`, unless one is running.")
    click.echo("     A running one finds the account by itself.")
    if has_list:
        click.echo(f"  2. The people with the allowed ids can write to {name}.")
        return
    click.echo(f"  2. Write a message to {name}. It answers with a code.")
    click.echo("  3. Run: tenax pair CODE")


@channel.command("remove")
@click.argument("label")
@pass_config
def remove(config: Config, label: str) -> None:
    """Remove an account from the settings, with its token. Its conversations stay."""
    set_channel(config, label, None, token=None)
    click.echo(f"Removed: {to_one_line(label)}. Its conversations stay.")


# -- messages that did not go out ------------------------------------------------------------------------------


@channel.command("failed")
@json_option
@pass_config
def list_failed(config: Config, *, as_json: bool) -> None:
    """List the messages that are uncertain or dead.

    An uncertain message may have arrived, and is not sent again by itself. The chat app has refused a dead message.
    """
    with open_rows(config) as rows:
        failed = rows.failed()
        labels = labels_of(config, rows)
        titles = _chat_titles(rows)
        now = rows.now_us()
    if as_json:
        print_json([_failed_to_json(delivery, labels) for delivery in failed])
        return
    for delivery in failed:
        title = titles.get((delivery.account, delivery.chat), "")
        chat = f"{delivery.chat} ({title})" if title else delivery.chat
        line = join_columns(
            delivery.key[:_ID_CHARS],
            labels.get(delivery.account, delivery.account),
            f"chat {chat}",
            _unit_name(delivery),
            delivery.state,
            short_time(delivery.at, now),
            delivery.error,
        )
        click.echo(line)
    if failed:
        help_line = "To send a message again: tenax channel retry ID|all      To give it up: tenax channel discard ID|all"
        click.echo(help_line, err=True)
    else:
        click.echo("No message is uncertain or dead.", err=True)


def _chat_titles(rows: ChannelRows) -> dict[tuple[str, str], str]:
    users = {LOCAL_USER, *(person.user for person in rows.people())}
    return {
        (chat.account, chat.chat): chat.title
        for user in sorted(users)
        for chat in rows.chats_of(user)
    }


def _unit_name(delivery: Outgoing) -> str:
    return _UNITS.get(delivery.unit.partition(":")[0], "message")


def _failed_to_json(delivery: Outgoing, labels: dict[str, str]) -> dict[str, Any]:
    # The text of a notice is left out.
    return {
        "id": delivery.key,
        "label": labels.get(delivery.account),
        "account": delivery.account,
        "chat": delivery.chat,
        "thread": delivery.thread,
        "kind": _unit_name(delivery),
        "piece": delivery.piece,
        "state": delivery.state,
        "error": delivery.error,
        "at": rfc3339(delivery.at),
    }


@channel.command("retry")
@click.argument("id", metavar="ID|all")
@pass_config
def retry(config: Config, id: str) -> None:  # noqa: A002  (the name in the usage)
    """Send an uncertain or dead message again. ID is from `tenax channel failed`, `all` means all of them.

    A message that may have arrived already is sent with a mark.
    """
    with open_rows(config) as rows:
        count = _resolve(rows, id, rows.retry)
    click.echo(f"To be sent again: {_messages(count)}.")
    click.echo("Messages go out while `tenax serve` or `tenax gateway` runs.", err=True)


@channel.command("discard")
@click.argument("id", metavar="ID|all")
@pass_config
def discard(config: Config, id: str) -> None:  # noqa: A002
    """Give up an uncertain or dead message. ID is from `tenax channel failed`, `all` means all of them.

    The message stays in its conversation.
    """
    with open_rows(config) as rows:
        count = _resolve(rows, id, rows.discard)
    click.echo(f"Discarded: {_messages(count)}.")


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _resolve(rows: ChannelRows, id: str, act: Callable[[Outgoing], bool]) -> int:  # noqa: A002
    """Apply `act` to the messages with an id. Return the number of changed messages."""
    if id != "all":
        found = _find_failed(rows.failed(), id)
        if act(found):
            return 1
        raise _no_message(id)
    count = 0
    # `failed` returns a limited number of messages. A running server may let a message fail again at once.
    seen: set[str] = set()
    while deliveries := [row for row in rows.failed() if row.key not in seen]:
        for delivery in deliveries:
            seen.add(delivery.key)
            count += act(delivery)
    return count


def _find_failed(failed: list[Outgoing], id: str) -> Outgoing:  # noqa: A002
    matches = [
        delivery
        for delivery in failed
        if len(id) >= _ID_CHARS_MIN and delivery.key.startswith(id.lower())
    ]
    if len(matches) > 1:
        raise InvalidInput(
            f"Several messages have an id that begins with {id:.20}.",
            hint=f"The whole ids are in: {FAILED_COMMAND} --json",
        )
    if not matches:
        raise _no_message(id)
    return matches[0]


def _no_message(id: str) -> InvalidInput:  # noqa: A002
    return InvalidInput(
        f"No uncertain or dead message has the id {id:.20}.",
        hint=f"To see their ids: {FAILED_COMMAND}",
    )


# -- people ----------------------------------------------------------------------------------------------------


@channel.command("people")
@json_option
@pass_config
def list_people(config: Config, *, as_json: bool) -> None:
    """List the people who may talk to Tenax in chat apps."""
    with open_rows(config) as rows:
        people = rows.people()
        labels = labels_of(config, rows)
    if as_json:
        print_json([_person_to_json(person, labels) for person in people])
        return
    for person in people:
        account = labels.get(person.account, person.account)
        user = "you" if person.user == LOCAL_USER else f"user {person.user}"
        since = f"since {minute(person.at)}"
        click.echo(join_columns(account, person.person, person.name, user, since))
    if not people:
        click.echo("Nobody. To let somebody in: tenax pair", err=True)


def _person_to_json(person: ChatPerson, labels: dict[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(person)
    return fields | {"label": labels.get(person.account), "at": rfc3339(person.at)}


@channel.command("forget")
@click.argument("account")
@click.argument("person")
@pass_config
def forget(config: Config, account: str, person: str) -> None:
    """Make a person a stranger again. ACCOUNT and PERSON are the first two columns of `tenax channel people`.

    The conversations of the person stay.
    """
    with open_rows(config) as rows:
        labels = labels_of(config, rows)
        found = [
            known
            for known in rows.people()
            if known.person == person
            and account in {known.account, labels.get(known.account)}
        ]
        if not found:
            raise InvalidInput(
                f"Nobody with the id {person:.60} may talk to {account:.60}.",
                hint="To see who may talk: tenax channel people",
            )
        for known in found:
            rows.remove_person(known.account, known.person)
            name = to_one_line(known.name or known.person)
            click.echo(f"{name} may not talk any more.")
            settings = config.channels.get(labels.get(known.account, ""))
            if settings is not None and person in settings.allow:
                click.echo(
                    f"The id is in channels.{settings.label}.allow, and lets the person in again. "
                    f"Remove it from {config.file}.",
                    err=True,
                )
