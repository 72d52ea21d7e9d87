"""`/api/channels`: the accounts of Tenax in chat apps, who may talk there, and messages that did not go out.

Only the owner sees and changes the accounts. Every user connects own conversations with own chats.
No answer contains a token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from tenax.assembly import Runtime
from tenax.channels.base import Channel, Kind
from tenax.channels.people import user_name
from tenax.channels.platforms import PLATFORMS, check_people, connect
from tenax.channels.rows import (
    FAILED_STATES,
    OPEN_STATES,
    ChannelRows,
    ChatPerson,
    DeliveryState,
    KnownChat,
    Outgoing,
    Pairing,
    Route,
)
from tenax.channels.states import AccountState, State, read_states
from tenax.channels.units import kind_of
from tenax.clock import rfc3339
from tenax.concurrency import run_in_own_thread
from tenax.config import Config, Secret
from tenax.config.read import check_values
from tenax.config.schema import ChannelSettings, Platform
from tenax.config.write import set_channel
from tenax.errors import (
    ChannelAway,
    ChannelError,
    ConfigError,
    FloodWait,
    InvalidInput,
    Refused,
)
from tenax.events import ConversationRouted
from tenax.journal import LOCAL_USER
from tenax.web.api import Id, RequestBody, ResponseBody, endpoint
from tenax.web.problems import or_refused
from tenax.web.server_state import ServerState, state_of, user_of

T = TypeVar("T")

_CHECK_SECONDS: Final = 15.0
_LABELS_MAX: Final = 100
_AGAIN: Final = "Look at the list again."

Label = Annotated[str, Meta(pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$", max_length=32)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
"""An account, a person or a chat, as the platform names it."""
Thread = Annotated[str, Meta(max_length=200)]


# -- what is shown ---------------------------------------------------------------------


class ChannelAccount(ResponseBody):
    """An account in a chat app. A time is empty if there was no such moment."""

    label: str
    platform: str
    account: str
    """PLATFORM:ID, or empty before the account was served for the first time."""
    name: str
    """The name of the bot, such as @my_bot, once known."""
    state: State
    error: str
    received_at: str
    sent_at: str
    waiting: int
    """The number of messages that have not gone out yet."""
    lag_seconds: int
    """The age of the oldest of these messages."""
    failed: int
    """The number of uncertain and dead messages."""
    repeated: int
    """The number of messages that may have come twice. Each of them carries a mark."""
    promise_in: str
    promise_out: str


class OpenCode(ResponseBody):
    """A stranger who wrote to an account, and the code that the account has answered."""

    code: str
    account: str
    person: str
    """The platform's id of the person."""
    name: str
    """The name that the person has chosen. Anybody can choose any name."""
    at: str


class Talker(ResponseBody):
    """A person who may talk to an account."""

    account: str
    person: str
    name: str
    user: str
    owner: bool
    """Whether the person talks as the owner of this Tenax."""
    at: str


class FailedDelivery(ResponseBody):
    """A message that did not go out for sure. `uncertain`: it may have arrived. `dead`: the chat app has refused it."""

    id: str
    account: str
    title: str
    """The title of the chat, or its id."""
    kind: Kind
    state: DeliveryState
    error: str
    at: str
    conversation: str | None
    """The conversation, if it belongs to the owner."""


class ChannelList(ResponseBody):
    """The chat apps."""

    accounts: list[ChannelAccount]
    codes: list[OpenCode]
    people: list[Talker]
    failed: list[FailedDelivery]


class ChatPlace(ResponseBody):
    """A chat, or a thread of a chat."""

    account: str
    platform: str
    chat: str
    thread: str
    title: str
    group: bool
    """Whether several people may read the chat."""


class ConversationChats(ResponseBody):
    """The chats to which a conversation is connected, and the other chats of the user in which it can continue."""

    connected: list[ChatPlace]
    available: list[ChatPlace]


# -- what is asked ---------------------------------------------------------------------


class NewAccount(RequestBody):
    """An account in a chat app. The label of a connected account gives this account a new token."""

    platform: Platform
    token: Annotated[str, Meta(min_length=1, max_length=1000)]
    label: Label | None = None
    """The name in the settings. By default, the name of the platform."""
    url: Annotated[str, Meta(max_length=2000)] = ""
    """The address of a server of one's own. By default, the platform's server."""
    allow: Annotated[list[Name], Meta(max_length=100)] = []  # noqa: RUF012  (msgspec copies it)
    """The platform's ids of people who may talk without a code. Other people then get no answer."""


class PairingCode(RequestBody):
    """The code of a stranger. `me`: the stranger is the owner of this Tenax."""

    code: Annotated[str, Meta(min_length=1, max_length=100)]
    me: bool


class Place(RequestBody):
    """A chat, or a thread of a chat."""

    account: Name
    chat: Name
    thread: Thread = ""


# -- accounts --------------------------------------------------------------------------


@endpoint("GET", "/api/channels", owner=True)
async def list_channels(call: Request) -> ChannelList:
    """List the accounts in chat apps with their state, the open codes, the people who may talk, and failed messages."""
    state = state_of(call)
    await state.look_at_settings()
    return await _shown(state)


@endpoint("POST", "/api/channels", 201, owner=True)
async def add_channel(call: Request, body: NewAccount) -> ChannelList:
    """Connect an account of a chat app, or give a connected account a new token. The token is checked first."""
    state = state_of(call)
    await state.look_at_settings()
    label, values = _settings_of(state.config, body)
    token = _token_of(body)
    channel = await _connect(state.config, label, values, token)
    try:
        await _refuse_another(state, label, channel.account)
        await _sign_in(channel)
    finally:
        await channel.close()
    await state.change(set_channel, label, values, token=token)
    return await _shown(state)


@endpoint("DELETE", "/api/channels/{label}", owner=True)
async def remove_channel(call: Request, label: Label) -> ChannelList:
    """Remove an account and its token from the settings. Its conversations stay."""
    state = state_of(call)
    await or_refused(state.change(set_channel, label, None, token=None))
    return await _shown(state)


def _settings_of(config: Config, body: NewAccount) -> tuple[str, dict[str, Any]]:
    """Return the label and the settings of an account. A known account keeps settings that the request leaves out."""
    label = body.label or _free_label(config, body.platform)
    known = config.channels.get(label)
    values: dict[str, Any] = {"platform": body.platform}
    url = body.url.strip() or (known.url if known else "")
    allowed = check_people(body.platform, tuple(body.allow))
    allow = list(allowed or (known.allow if known else ()))
    if url:
        values["url"] = url
    if allow:
        values["allow"] = allow
    return label, values


def _token_of(body: NewAccount) -> str:
    token = body.token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token or not token:
        raise InvalidInput(
            "This is not a token: a token has no spaces and no special characters.",
            hint="Copy the whole token again.",
        )
    return token


def _free_label(config: Config, platform: str) -> str:
    labels = [platform, *(f"{platform}-{n}" for n in range(2, _LABELS_MAX))]
    for label in labels:
        if label not in config.channels:
            return label
    raise Refused(f"There are {_LABELS_MAX - 1} accounts already.")


async def _connect(
    config: Config, label: str, values: dict[str, Any], token: str
) -> Channel:
    """Return the channel of an account that is not in the settings yet."""

    def create() -> Channel:
        check_values(config, {"channels": {label: values}}, {})
        settings = msgspec.convert(values, ChannelSettings)
        secret = Secret(token, "the field of the token")
        return connect(msgspec.structs.replace(settings, label=label, token=secret))

    # The package of a platform takes a while to import.
    try:
        return await run_in_own_thread(create)
    except (ConfigError, msgspec.ValidationError) as error:
        hint = getattr(error, "hint", "")
        raise InvalidInput(str(error), hint=hint) from error


async def _refuse_another(state: ServerState, label: str, account: str) -> None:
    """Refuse an account that has another label, and a label that has another account."""
    for other, settings in state.config.channels.items():
        known = await _account_of(settings)
        if other != label and known == account:
            raise Refused(
                f"This bot is connected already, as {other}.",
                hint=f"To use a new token, enter the token at {other}.",
            )
        if other == label and known not in {"", account}:
            raise Refused(
                f"{label} is connected to another bot.",
                hint="Choose another name, or remove the account first. Its conversations stay.",
            )


async def _account_of(settings: ChannelSettings) -> str:
    """Return PLATFORM:ID of an account in the settings, or "" if its token is missing or malformed."""
    try:
        channel = await run_in_own_thread(partial(connect, settings))
    except (ConfigError, InvalidInput):
        return ""
    await channel.close()
    return channel.account


async def _sign_in(channel: Channel) -> None:
    """Check the token. Raises `InvalidInput` for a refused token, and `Refused` if the check is not possible now."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await channel.open()
    except TimeoutError as error:
        raise Refused(
            f"{channel.traits.platform} has not answered within {_CHECK_SECONDS:.0f} seconds. Nothing was saved.",
            hint="Check the network of the machine on which Tenax runs, and try again.",
        ) from error
    except (ChannelAway, FloodWait) as error:
        raise Refused(f"{error} Nothing was saved.", hint=error.hint) from error
    except ChannelError as error:
        raise InvalidInput(f"{error} Nothing was saved.", hint=error.hint) from error


# -- people ----------------------------------------------------------------------------


@endpoint("POST", "/api/channels/pair", owner=True)
async def pair_person(call: Request, body: PairingCode) -> ChannelList:
    """Let the person with a code talk: as the owner, or as a user of their own."""
    state = state_of(call)
    await or_refused(_in_thread(state, partial(_pair, body.code, me=body.me)))
    return await _shown(state)


def _pair(code: str, rows: ChannelRows, *, me: bool) -> None:
    wanted = code.strip().upper().replace("-", "").encode()
    user = LOCAL_USER
    for pairing in rows.pairings():
        if not me and secrets.compare_digest(pairing.code.encode(), wanted):
            user = user_name(pairing.account, pairing.person)
    # Raises the error for an unknown code.
    rows.pair(code, user)


@endpoint("DELETE", "/api/chat-people", owner=True)
async def remove_person(call: Request, account: Name, person: Name) -> ChannelList:
    """Make a person of a chat app a stranger again. The conversations of the person stay."""
    state = state_of(call)

    def remove(rows: ChannelRows) -> None:
        for label, settings in state.config.channels.items():
            if _stored_account(rows, label) == account and person in settings.allow:
                raise Refused(
                    f"The settings let this person in: channels.{label}.allow.",
                    hint=f"Remove the id {person} from {state.config.file} first.",
                )
        rows.remove_person(account, person)

    await _in_thread(state, remove)
    return await _shown(state)


# -- messages that did not go out ------------------------------------------------------


@endpoint("POST", "/api/channels/deliveries/retry", owner=True)
async def retry_deliveries(call: Request) -> ChannelList:
    """Send all uncertain and dead messages again. A message that may have arrived gets a mark."""
    return await _resolve_all(state_of(call), ChannelRows.retry)


@endpoint("POST", "/api/channels/deliveries/discard", owner=True)
async def discard_deliveries(call: Request) -> ChannelList:
    """Give up all uncertain and dead messages. They stay in their conversations."""
    return await _resolve_all(state_of(call), ChannelRows.discard)


@endpoint("POST", "/api/channels/deliveries/{delivery}/retry", owner=True)
async def retry_delivery(call: Request, delivery: Id) -> ChannelList:
    """Send an uncertain or dead message again. A message that may have arrived gets a mark."""
    return await _resolve(state_of(call), ChannelRows.retry, delivery)


@endpoint("POST", "/api/channels/deliveries/{delivery}/discard", owner=True)
async def discard_delivery(call: Request, delivery: Id) -> ChannelList:
    """Give up an uncertain or dead message. The message stays in its conversation."""
    return await _resolve(state_of(call), ChannelRows.discard, delivery)


_Act = Callable[[ChannelRows, Outgoing], bool]


async def _resolve(state: ServerState, act: _Act, id: str) -> ChannelList:  # noqa: A002  (its name in the path)
    def resolve(rows: ChannelRows) -> bool:
        return any(act(rows, row) for row in rows.failed() if row.key == id)

    if not await _in_thread(state, resolve):
        raise Refused("This message has been handled, or does not exist.", hint=_AGAIN)
    state.gateway.wake()
    return await _shown(state)


async def _resolve_all(state: ServerState, act: _Act) -> ChannelList:
    def resolve(rows: ChannelRows) -> None:
        # `failed` returns a limited number of messages. A retried message may fail again at once.
        seen: set[str] = set()
        while found := [row for row in rows.failed() if row.key not in seen]:
            for row in found:
                seen.add(row.key)
                act(rows, row)

    await _in_thread(state, resolve)
    state.gateway.wake()
    return await _shown(state)


# -- the chats of a conversation -------------------------------------------------------


@endpoint("GET", "/api/conversations/{id}/routes")
async def list_routes(call: Request, runtime: Runtime, id: Id) -> ConversationChats:  # noqa: A002
    """List the chats to which a conversation is connected, and the chats of this user in which it can continue."""
    await runtime.journal.summary(id)
    return await _chats(call, id)


@endpoint("POST", "/api/conversations/{id}/routes", 201)
async def add_route(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    body: Place,
) -> ConversationChats:
    """Continue a conversation in a chat of this user. The chat leaves its conversation of before."""
    await runtime.journal.summary(id)
    for place in (await _chats(call, id)).available:
        if _is_at(place, body):
            route = ConversationRouted(
                body.account, body.chat, body.thread, shared=place.group
            )
            await runtime.journal.append(id, [route])
            break
    else:
        raise Refused(
            "The conversation cannot continue in this chat.",
            hint="Write to the bot in this chat first, and look at the list again.",
        )
    state_of(call).gateway.wake()
    return await _chats(call, id)


@endpoint("DELETE", "/api/conversations/{id}/routes")
async def remove_route(
    call: Request,
    runtime: Runtime,
    id: Id,  # noqa: A002
    account: Name,
    chat: Name,
    thread: Thread = "",
) -> ConversationChats:
    """Disconnect a conversation from a chat. The next message there begins a new conversation."""
    await runtime.journal.summary(id)
    wanted = Place(account, chat, thread)
    for place in (await _chats(call, id)).connected:
        if _is_at(place, wanted):
            route = ConversationRouted(
                account, chat, thread, shared=place.group, closed=True
            )
            await runtime.journal.append(id, [route])
            return await _chats(call, id)
    raise Refused("The conversation is not connected to this chat.", hint=_AGAIN)


def _is_at(place: ChatPlace, wanted: Place) -> bool:
    return (place.account, place.chat, place.thread) == (
        wanted.account,
        wanted.chat,
        wanted.thread,
    )


async def _chats(call: Request, conversation: str) -> ConversationChats:
    state, user = state_of(call), user_of(call)
    accounts = state.config.channels
    return await _in_thread(state, partial(_read_chats, user, conversation, accounts))


def _read_chats(
    user: str,
    conversation: str,
    accounts: Mapping[str, ChannelSettings],
    rows: ChannelRows,
) -> ConversationChats:
    chats = rows.chats_of(user)
    groups = {(chat.account, chat.chat) for chat in chats if chat.is_group}
    connected = [
        _route_place(route, is_group=(route.account, route.chat) in groups)
        for route in rows.routes_of(user, conversation)
        if _is_current(rows, route, user, conversation)
    ]
    # An account that was removed, or does not know the user any more, delivers nothing.
    served = {_stored_account(rows, label) for label in accounts}
    known = {person.account for person in rows.people() if person.user == user}
    available = [
        _chat_place(chat)
        for chat in chats
        if chat.account in served & known
        and not _is_current(rows, chat, user, conversation)
    ]
    if user == LOCAL_USER:
        places = [
            ChatPlace(account, _platform_of(account), conversation, "", label, False)
            for label, account in _accounts_with_any_chat(accounts, rows)
        ]
        connected = [_with_title(place, places) for place in connected]
        own = {place.account for place in places}
        available = [place for place in available if place.account not in own]
        available += [place for place in places if place not in connected]
    return ConversationChats(connected, available)


def _accounts_with_any_chat(
    accounts: Mapping[str, ChannelSettings], rows: ChannelRows
) -> Iterator[tuple[str, str]]:
    """Yield label and PLATFORM:ID of the accounts in which the owner can continue any conversation."""
    for label, settings in accounts.items():
        account = _stored_account(rows, label)
        if account and settings.url and PLATFORMS[settings.platform].has_any_chat:
            yield label, account


def _with_title(connected: ChatPlace, places: list[ChatPlace]) -> ChatPlace:
    """Return a connected chat with the title of the same place, because such a chat has only an id."""
    for place in places:
        if (place.account, place.chat) == (connected.account, connected.chat):
            return place
    return connected


def _is_current(
    rows: ChannelRows, place: Route | KnownChat, user: str, conversation: str
) -> bool:
    """Return whether the next message of a chat comes to the conversation."""
    current = rows.current_route(place.account, place.chat, place.thread, user)
    return current == conversation


def _route_place(route: Route, *, is_group: bool) -> ChatPlace:
    title = route.title or route.chat
    return ChatPlace(
        route.account,
        _platform_of(route.account),
        route.chat,
        route.thread,
        title,
        is_group,
    )


def _chat_place(chat: KnownChat) -> ChatPlace:
    return ChatPlace(
        chat.account,
        _platform_of(chat.account),
        chat.chat,
        chat.thread,
        chat.title or chat.chat,
        chat.is_group,
    )


def _platform_of(account: str) -> str:
    return account.partition(":")[0]


# -- reading ---------------------------------------------------------------------------


async def _in_thread(state: ServerState, work: Callable[[ChannelRows], T]) -> T:
    rows = ChannelRows(state.journal)
    return await state.gateway.rows.threads.run(partial(work, rows))


async def _shown(state: ServerState) -> ChannelList:
    return await _in_thread(state, partial(_read_all, state.config))


def _read_all(config: Config, rows: ChannelRows) -> ChannelList:
    now = rows.now_us()
    return ChannelList(
        accounts=[_account(account, now) for account in read_states(config, rows)],
        codes=[_code(pairing) for pairing in rows.pairings()],
        people=[_person(person) for person in rows.people()],
        failed=[_failed(row, rows) for row in rows.failed()],
    )


def _account(account: AccountState, now: int) -> ChannelAccount:
    oldest = account.oldest_unsent_at
    return ChannelAccount(
        label=account.label,
        platform=account.platform,
        account=account.account,
        name=account.name,
        state=account.state,
        error=account.error,
        received_at=_time(account.received_at),
        sent_at=_time(account.sent_at),
        waiting=_count(account, OPEN_STATES),
        lag_seconds=max(now - oldest, 0) // 1_000_000 if oldest else 0,
        failed=_count(account, FAILED_STATES),
        repeated=account.counts.get("repeated", 0),
        promise_in=account.promise_in,
        promise_out=account.promise_out,
    )


def _count(account: AccountState, states: frozenset[str]) -> int:
    return sum(account.counts.get(state, 0) for state in states)


def _time(at: int) -> str:
    return rfc3339(at) if at else ""


def _code(pairing: Pairing) -> OpenCode:
    return OpenCode(
        pairing.code,
        pairing.account,
        pairing.person,
        pairing.name,
        rfc3339(pairing.at),
    )


def _person(person: ChatPerson) -> Talker:
    return Talker(
        person.account,
        person.person,
        person.name,
        person.user,
        person.user == LOCAL_USER,
        rfc3339(person.at),
    )


def _failed(row: Outgoing, rows: ChannelRows) -> FailedDelivery:
    title = rows.chat(row.account, row.chat, row.thread).title
    # The owner sees that a message of another user failed, and not to which conversation it belongs.
    conversation = rows.conversation_of(row.conversation, LOCAL_USER)
    return FailedDelivery(
        row.key,
        row.account,
        title or row.chat,
        kind_of(row.unit),
        row.state,
        row.error,
        rfc3339(row.at),
        conversation,
    )


def _stored_account(rows: ChannelRows, label: str) -> str:
    """Return PLATFORM:ID of an account that was served, or ""."""
    return rows.value(f"label:{label}", "account")
