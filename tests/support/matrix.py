"""A fake Matrix homeserver that keeps the rules of Synapse which matter for a bot.

    with FakeMatrix() as matrix:
        matrix.say("hello")
        # A bot: MatrixChannel(matrix.token, url=matrix.url, user=matrix.bot, device=matrix.device)
        matrix.wait_for(lambda: matrix.messages()[-1].from_bot)

The rules, seen on Synapse 1.163.2 (tests/channels/test_matrix_synapse.py runs the channel against a real one):

- `/sync` with the same `since` gives the same events again. Only the next `since` confirms them.
- A timeline has at most as many events as the filter allows. The older ones are a gap, for `/messages`.
- A transaction id gives the event of the first request, for the same device, room and type of event.
- 429 has `retry_after_ms`. A state event that does not exist is 404 M_NOT_FOUND.

The server runs in threads, so asyncio tests and tests that kill processes use the same class. Every public method can be
called from any thread. Rooms here are not encrypted: there are no keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx

from tests.support.served import kept_port

__all__ = [
    "ADA",
    "BOB",
    "Answer",
    "Call",
    "FakeMatrix",
    "Fault",
    "MatrixProxy",
    "Message",
]

T = TypeVar("T")
Json = dict[str, Any]
When = Literal["before", "after"]

SECONDS: Final = 30.0
SERVER: Final = "fake.test"
ADA: Final = f"@ada:{SERVER}"
BOB: Final = f"@bob:{SERVER}"
_RECHECK_SECONDS: Final = 0.05
_EVENT_BYTES: Final = 65_536
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_CALLS_SHOWN: Final = 20


class Message(NamedTuple):
    """A message as a room shows the message now."""

    id: str
    room: str
    sender: str
    text: str
    html: str
    from_bot: bool
    edits: int
    content: Json
    """The content of the message or of its last edit."""


@dataclass
class Call:
    """A request."""

    method: str
    """The kind of the request: sync, send, edit, react, upload, download, messages, ..."""
    path: str
    parameters: dict[str, str]
    content: Json
    at: float
    room: str = ""
    outcome: str = ""
    verb: str = ""
    raw: str = ""
    """The address as it came, with the parameters."""
    headers: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        return f"{self.at:.3f} {self.method} {self.path} {self.outcome}"


class Fault:
    """A fault of the server. `reached` is set when a request meets the fault."""

    def __init__(
        self,
        method: str,
        when: When,
        act: Callable[[Call], Answer | None],
        times: int | None,
        room: str = "",
    ) -> None:
        self.method = method
        self.when = when
        self.act = act
        self.times = times
        self.room = room
        self.count = 0
        self.reached = threading.Event()
        self.released = threading.Event()

    def release(self) -> None:
        self.times = 0
        self.released.set()

    def matches(self, call: Call, when: When) -> bool:
        if self.when != when or self.times == 0:
            return False
        if self.room and self.room != call.room:
            return False
        return self.method in {"", call.method}


class Answer(NamedTuple):
    status: int
    body: bytes
    media_type: str = "application/json"


class _CutError(Exception):
    """The connection is lost."""


class _RefusedError(Exception):
    def __init__(self, status: int, code: str, **more: Any) -> None:
        super().__init__(code)
        self.answer = _json({"errcode": code, "error": code, **more}, status)


def _json(body: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(body).encode())


@dataclass
class _Room:
    id: str
    members: dict[str, str] = field(default_factory=dict)
    """User to membership."""
    state: dict[tuple[str, str], Json] = field(default_factory=dict)


class FakeMatrix:
    """A homeserver with one account for a bot, and people with private chats."""

    bot: Final = f"@tenax:{SERVER}"
    device = "TENAXDEV"
    token: Final = "syt_dGVuYXg_" + "x" * 20

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.confirmed = 0
        self.waiting_polls = 0
        self.copies = 1
        """How often `/sync` gives every event."""
        self.is_reversed = False
        self.to_device: list[Any] = []
        """The messages between devices in every answer of `/sync`."""
        self.media: dict[str, tuple[bytes, str]] = {}
        self._changed = threading.Condition(threading.RLock())
        self._events: list[Json] = []
        self._rooms: dict[str, _Room] = {}
        self._names: dict[str, str] = {self.bot: "Tenax"}
        self._transactions: dict[str, str] = {}
        self._invitations: list[tuple[int, str]] = []
        self._faults: list[Fault] = []
        self._connections: set[socket.socket] = set()
        self._kept = kept_port()
        self._port = self._kept.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None
        self._errors: list[BaseException] = []
        self._number = 0
        self.device_keys: Json = {}
        """The keys of the bot's device."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.back()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        for fault in list(self._faults):
            fault.release()
        self.away()
        self._kept.close()

    # -- people ------------------------------------------------------------------------

    def room_of(self, person: str = ADA) -> str:
        """Return the private chat of a person with the bot. The bot has joined it."""
        name = person[1:].partition(":")[0]
        room_id = f"!dm-{name}:{SERVER}"
        with self._changed:
            if room_id not in self._rooms:
                self.add_room(room_id, person)
        return room_id

    def add_room(self, room_id: str, *people: str, title: str = "") -> str:
        """Add a room with the bot and people."""
        with self._changed:
            room = self._rooms[room_id] = _Room(room_id)
            for user in (*people, self.bot):
                self._names.setdefault(user, user[1:].partition(":")[0].capitalize())
                self._enter(room, user, "join", user)
            if title:
                self._set_state(room, "m.room.name", "", {"name": title}, people[0])
        return room_id

    def enter(self, room_id: str, person: str) -> None:
        """Let a person join a room."""
        with self._changed:
            self._enter(self._rooms[room_id], person, "join", person)

    def invite(
        self,
        room_id: str,
        sender: str,
        *others: str,
        is_direct: bool = True,
        join_rule: str = "invite",
    ) -> None:
        """Let a person invite the bot to a new room."""
        with self._changed:
            room = self._rooms[room_id] = _Room(room_id)
            for user in (sender, *others):
                self._names.setdefault(user, user[1:].partition(":")[0].capitalize())
                self._enter(room, user, "join", user)
            self._set_state(
                room, "m.room.join_rules", "", {"join_rule": join_rule}, sender
            )
            self._enter(room, self.bot, "invite", sender, is_direct=is_direct)
            self._invitations.append((len(self._events), room_id))
            self._changed.notify_all()

    def say(
        self,
        text: str = "",
        sender: str = ADA,
        *,
        room: str = "",
        file: tuple[str, bytes, str] | None = None,
        kind: str = "m.room.message",
        content: Json | None = None,
        **more: Any,
    ) -> str:
        """Write to a room. Return the id of the event."""
        body: Json = content or {"msgtype": "m.text", "body": text, **more}
        if file is not None:
            name, data, media_type = file
            url = self.keep_media(data, media_type)
            info = {"size": len(data), "mimetype": media_type}
            body = {"msgtype": "m.file", "body": name, "url": url, "info": info}
            if text:
                body |= {"filename": name, "body": text}
        room_id = room or self.room_of(sender)
        with self._changed:
            return self._add(room_id, kind, sender, body)["event_id"]  # type: ignore[no-any-return]

    def react(self, message: str, emoji: str, sender: str = ADA) -> str:
        relation = {"rel_type": "m.annotation", "event_id": message, "key": emoji}
        with self._changed:
            room = self._find(message)["room_id"]
        return self.say(
            sender=sender,
            room=room,
            kind="m.reaction",
            content={"m.relates_to": relation},
        )

    def edit(self, message: str, text: str, sender: str = ADA) -> str:
        with self._changed:
            room = self._find(message)["room_id"]
        content = {
            "msgtype": "m.text",
            "body": f"* {text}",
            "m.new_content": {"msgtype": "m.text", "body": text},
            "m.relates_to": {"rel_type": "m.replace", "event_id": message},
        }
        return self.say(sender=sender, room=room, content=content)

    def delete(self, message: str, sender: str = ADA) -> None:
        with self._changed:
            found = self._find(message)
            self._add(
                found["room_id"],
                "m.room.redaction",
                sender,
                {"redacts": message},
                redacts=message,
            )
            found["content"] = {}
            self._changed.notify_all()

    def set_encrypted(self, room_id: str) -> None:
        """Say that a room is encrypted. There are no keys here."""
        content = {"algorithm": "m.megolm.v1.aes-sha2"}
        with self._changed:
            self._set_state(self._rooms[room_id], "m.room.encryption", "", content, ADA)

    def keep_media(self, data: bytes, media_type: str) -> str:
        with self._changed:
            self._number += 1
            url = f"mxc://{SERVER}/media{self._number}"
            self.media[url] = (data, media_type)
        return url

    # -- what is there -----------------------------------------------------------------

    def messages(self, person: str = ADA, *, room: str = "") -> list[Message]:
        """Return the messages of a room, oldest first, without deleted messages."""
        room_id = room or self.room_of(person)
        with self._changed:
            events = [event for event in self._events if event["room_id"] == room_id]
        edits: dict[str, list[Json]] = {}
        for event in events:
            relation = event["content"].get("m.relates_to", {})
            if relation.get("rel_type") == "m.replace":
                edits.setdefault(relation["event_id"], []).append(event)
        found = []
        for event in events:
            content = event["content"]
            is_edit = content.get("m.relates_to", {}).get("rel_type") == "m.replace"
            if event["type"] != "m.room.message" or not content or is_edit:
                continue
            changes = edits.get(event["event_id"], [])
            shown = changes[-1]["content"]["m.new_content"] if changes else content
            found.append(
                Message(
                    event["event_id"],
                    room_id,
                    event["sender"],
                    shown["body"],
                    shown.get("formatted_body", ""),
                    event["sender"] == self.bot,
                    len(changes),
                    shown,
                )
            )
        return found

    def reactions(self, message: str) -> list[str]:
        """Return the reactions of the bot to a message."""
        with self._changed:
            return [
                event["content"]["m.relates_to"]["key"]
                for event in self._events
                if event["type"] == "m.reaction"
                and event["sender"] == self.bot
                and event["content"]["m.relates_to"]["event_id"] == message
            ]

    def members(self, room_id: str) -> dict[str, str]:
        with self._changed:
            return dict(self._rooms[room_id].members)

    def is_confirmed(self) -> bool:
        """Return whether the bot has asked for what comes after the last event of a person."""
        with self._changed:
            last = max(
                (
                    number
                    for number, event in enumerate(self._events, 1)
                    if event["sender"] != self.bot
                ),
                default=0,
            )
            return self.confirmed >= last

    def calls(self, method: str = "") -> int:
        with self._changed:
            return sum(method in {"", call.method} for call in self.log)

    # -- faults ------------------------------------------------------------------------

    def on(
        self,
        method: str,
        callback: Callable[[Call], object],
        when: When = "after",
        times: int | None = 1,
    ) -> Fault:
        """Call something when a request comes: before the server acts, or before its answer."""

        def act(call: Call) -> None:
            callback(call)

        return self._add_fault(Fault(method, when, act, times))

    def fail(
        self,
        method: str,
        status: int,
        code: str = "M_UNKNOWN",
        times: int | None = 1,
        *,
        room: str = "",
        **more: Any,
    ) -> Fault:
        """Answer with an error, without acting."""
        answer = _json({"errcode": code, "error": code, **more}, status)
        return self._add_fault(Fault(method, "before", lambda _: answer, times, room))

    def flood(
        self, method: str, seconds: float, times: int | None = 1, *, room: str = ""
    ) -> Fault:
        wait = int(seconds * 1000)
        return self.fail(
            method, 429, "M_LIMIT_EXCEEDED", times, room=room, retry_after_ms=wait
        )

    def garbage_reply(
        self, method: str, times: int | None = 1, when: When = "after"
    ) -> Fault:
        answer = Answer(200, b"<html>no JSON</html>")
        return self._add_fault(Fault(method, when, lambda _: answer, times))

    def drop_before(self, method: str, times: int | None = 1) -> Fault:
        return self._add_fault(Fault(method, "before", _cut, times))

    def drop_after(self, method: str, times: int | None = 1) -> Fault:
        return self._add_fault(Fault(method, "after", _cut, times))

    def hang(self, method: str, when: When = "before") -> Fault:
        """Answer no request until the fault is released."""

        def hold(_: Call) -> None:
            fault.released.wait()

        fault = Fault(method, when, hold, None)
        return self._add_fault(fault)

    def slow(self, method: str, seconds: float, times: int | None = None) -> Fault:
        def wait(_: Call) -> None:
            fault.released.wait(seconds)

        fault = Fault(method, "before", wait, times)
        return self._add_fault(fault)

    def away(self) -> None:
        """Stop listening, and cut the connections."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        with self._changed:
            connections = list(self._connections)
            self._connections.clear()
        for connection in connections:
            _reset(connection)
        with self._changed:
            self._changed.notify_all()

    def back(self) -> None:
        fake = self

        class Handler(_Handler):
            matrix = fake

        server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        server.daemon_threads = True
        server.block_on_close = False
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    # -- waits -------------------------------------------------------------------------

    def wait_for(self, predicate: Callable[[], T], seconds: float = SECONDS) -> T:
        """Wait until something holds. It may depend on more than the fake."""
        deadline = time.monotonic() + seconds
        while not (found := predicate()):
            if time.monotonic() > deadline:
                raise TimeoutError(self.describe(seconds))
            with self._changed:
                self._changed.wait(_RECHECK_SECONDS)
        return found

    async def wait(self, predicate: Callable[[], T], seconds: float = SECONDS) -> T:
        return await asyncio.to_thread(self.wait_for, predicate, seconds)

    def describe(self, seconds: float) -> str:
        with self._changed:
            calls = [call.describe() for call in self.log[-_CALLS_SHOWN:]]
        return "\n".join(
            [f"Timed out after {seconds} seconds. The last requests:", *calls]
        )

    # -- inside ------------------------------------------------------------------------

    def _add_fault(self, fault: Fault) -> Fault:
        with self._changed:
            self._faults.append(fault)
        return fault

    def _add(
        self, room_id: str, kind: str, sender: str, content: Json, **more: Any
    ) -> Json:
        self._number += 1
        event = {
            "type": kind,
            "room_id": room_id,
            "event_id": f"$e{self._number}",
            "sender": sender,
            "content": content,
            "origin_server_ts": int(time.time() * 1000),
            "unsigned": {},
            **more,
        }
        self._events.append(event)
        self._changed.notify_all()
        return event

    def _set_state(
        self, room: _Room, kind: str, key: str, content: Json, sender: str
    ) -> None:
        room.state[kind, key] = content
        self._add(room.id, kind, sender, content, state_key=key)

    def _enter(
        self, room: _Room, user: str, membership: str, sender: str, **more: Any
    ) -> None:
        room.members[user] = membership
        content = {
            "membership": membership,
            "displayname": self._names.get(user),
            **more,
        }
        self._set_state(room, "m.room.member", user, content, sender)

    def _find(self, event_id: str) -> Json:
        for event in self._events:
            if event["event_id"] == event_id:
                return event
        raise _RefusedError(404, "M_NOT_FOUND")

    def serve(self, call: Call, body: bytes, *, is_authorised: bool) -> Answer:
        """Answer a request."""
        with self._changed:
            self.log.append(call)
            self._changed.notify_all()
        try:
            answer = self._meet(call, "before")
            if answer is None:
                self._check_token(call, is_authorised=is_authorised)
                answer = self._act(call, body)
                answer = self._meet(call, "after") or answer
        except _RefusedError as refused:
            answer = refused.answer
        except _CutError:
            call.outcome = "cut"
            raise
        except BaseException as error:
            self._errors.append(error)
            raise _CutError from error
        call.outcome = str(answer.status)
        with self._changed:
            self._changed.notify_all()
        return answer

    def _check_token(self, call: Call, *, is_authorised: bool) -> None:
        if not is_authorised and call.method != "login":
            raise _RefusedError(401, "M_UNKNOWN_TOKEN")

    def _meet(self, call: Call, when: When) -> Answer | None:
        with self._changed:
            found = [fault for fault in self._faults if fault.matches(call, when)]
            for fault in found:
                fault.count += 1
                if fault.times is not None:
                    fault.times -= 1
        for fault in found:
            fault.reached.set()
            with self._changed:
                self._changed.notify_all()
            answer = fault.act(call)
            if answer is not None:
                return answer
        return None

    def _act(self, call: Call, body: bytes) -> Answer:
        if call.method == "sync":
            return self._sync(call)
        with self._changed:
            act: Callable[[Call, bytes], Answer] = getattr(self, f"_do_{call.method}")
            return act(call, body)

    def _do_whoami(self, _call: Call, _body: bytes) -> Answer:
        return _json({"user_id": self.bot, "device_id": self.device})

    def _do_login(self, call: Call, _body: bytes) -> Answer:
        if call.content.get("password") != "secret words":
            raise _RefusedError(403, "M_FORBIDDEN")
        return _json(
            {
                "user_id": self.bot,
                "device_id": call.content.get("device_id", self.device),
                "access_token": self.token,
            }
        )

    def _do_profile(self, _call: Call, _body: bytes) -> Answer:
        return _json({"displayname": self._names[self.bot]})

    def _do_query(self, _call: Call, _body: bytes) -> Answer:
        keys = {self.bot: {self.device: self.device_keys}} if self.device_keys else {}
        return _json({"device_keys": keys})

    def _do_keys(self, call: Call, _body: bytes) -> Answer:
        self.device_keys = call.content.get("device_keys", self.device_keys)
        count = len(call.content.get("one_time_keys", ()))
        return _json({"one_time_key_counts": {"signed_curve25519": count}})

    def _do_typing(self, _call: Call, _body: bytes) -> Answer:
        return _json({})

    def _do_members(self, call: Call, _body: bytes) -> Answer:
        members = self._room(call).members
        joined = {
            user: {"display_name": self._names.get(user)}
            for user, membership in members.items()
            if membership == "join"
        }
        return _json({"joined": joined})

    def _do_state(self, call: Call, _body: bytes) -> Answer:
        kind = call.path.rpartition("/state/")[2]
        found = self._room(call).state.get((kind, ""))
        if found is None:
            raise _RefusedError(404, "M_NOT_FOUND")
        return _json(found)

    def _do_event(self, call: Call, _body: bytes) -> Answer:
        found = self._find(call.path.rpartition("/")[2])
        if found["room_id"] != call.room:
            raise _RefusedError(404, "M_NOT_FOUND")
        return _json(found)

    def _do_relations(self, call: Call, _body: bytes) -> Answer:
        message = call.path.partition("/relations/")[2].partition("/")[0]
        chunk = [
            event
            for event in self._events
            if event["type"] == "m.reaction"
            and event["content"].get("m.relates_to", {}).get("event_id") == message
        ]
        return _json({"chunk": chunk})

    def _do_join(self, call: Call, _body: bytes) -> Answer:
        room = self._room(call, joined=False)
        if room.members.get(self.bot) not in {"invite", "join"}:
            raise _RefusedError(403, "M_FORBIDDEN")
        if room.members[self.bot] != "join":
            self._enter(room, self.bot, "join", self.bot)
        return _json({"room_id": room.id})

    def _do_leave(self, call: Call, _body: bytes) -> Answer:
        self._enter(self._room(call), self.bot, "leave", self.bot)
        return _json({})

    def _do_upload(self, _call: Call, body: bytes) -> Answer:
        return _json({"content_uri": self.keep_media(body, "")})

    def _do_download(self, call: Call, _body: bytes) -> Answer:
        url = "mxc://" + call.path.partition("/download/")[2]
        if url not in self.media:
            raise _RefusedError(404, "M_NOT_FOUND")
        data, media_type = self.media[url]
        return Answer(200, data, media_type or "application/octet-stream")

    def _do_send(self, call: Call, body: bytes) -> Answer:
        self._room(call)
        if len(body) > _EVENT_BYTES:
            raise _RefusedError(413, "M_TOO_LARGE")
        known = self._transactions.get(call.path)
        if known is None:
            kind = call.path.partition("/send/")[2].partition("/")[0]
            known = self._add(call.room, kind, self.bot, call.content)["event_id"]
            self._transactions[call.path] = known
        return _json({"event_id": known})

    _do_edit = _do_send
    _do_react = _do_send

    def _do_messages(self, call: Call, _body: bytes) -> Answer:
        self._room(call)
        begin = int(call.parameters["from"][1:])
        until = int(call.parameters.get("to", "s0")[1:])
        limit = int(call.parameters.get("limit", "10"))
        chunk: list[Json] = []
        position = begin
        while position > until and len(chunk) < limit:
            position -= 1
            event = self._events[position]
            if event["room_id"] == call.room:
                chunk.append(event)
        answer: Json = {"chunk": chunk, "start": call.parameters["from"]}
        if position > until:
            answer["end"] = f"p{position}"
        return _json(answer)

    def _room(self, call: Call, *, joined: bool = True) -> _Room:
        room = self._rooms.get(call.room)
        if room is None or (joined and room.members.get(self.bot) != "join"):
            raise _RefusedError(403, "M_FORBIDDEN")
        return room

    def _sync(self, call: Call) -> Answer:
        since = int(call.parameters.get("since", "s0")[1:])
        wait = int(call.parameters.get("timeout", "0")) / 1000
        if "since" not in call.parameters:
            wait = 0.0
        deadline = time.monotonic() + wait
        with self._changed:
            server = self._server
            self.confirmed = max(self.confirmed, since)
            self.waiting_polls += 1
            self._changed.notify_all()
            try:
                left = wait
                while not self._has_news(since) and self._server is server and left > 0:
                    self._changed.wait(min(left, 1.0))
                    left = deadline - time.monotonic()
            finally:
                self.waiting_polls -= 1
            return _json(self._news(since, call))

    def _has_news(self, since: int) -> bool:
        return len(self._events) > since

    def _news(self, since: int, call: Call) -> Json:
        limit = json.loads(call.parameters.get("filter", "{}"))
        limit = limit.get("room", {}).get("timeline", {}).get("limit", 10)
        rooms: dict[str, list[int]] = {}
        for position in range(since, len(self._events)):
            rooms.setdefault(self._events[position]["room_id"], []).append(position)
        joined: Json = {}
        for room_id, new in rooms.items():
            if self._rooms[room_id].members.get(self.bot) != "join":
                continue
            has_joined = any(
                self._events[position].get("state_key") == self.bot for position in new
            )
            # A room that the bot has just joined comes with its history.
            begin = 0 if has_joined else since
            positions = [
                position
                for position in range(begin, len(self._events))
                if self._events[position]["room_id"] == room_id
            ]
            shown = positions[-limit:]
            events = [self._events[position] for position in shown]
            if self.is_reversed:
                events.reverse()
            events = [event for event in events for _ in range(self.copies)]
            timeline: Json = {"events": events, "limited": len(shown) < len(positions)}
            timeline["prev_batch"] = f"p{shown[0]}"
            joined[room_id] = {"timeline": timeline, "state": {"events": []}}
        invited = {
            room_id: {"invite_state": {"events": self._invite_state(room_id)}}
            for at, room_id in self._invitations
            if at > since and self._rooms[room_id].members.get(self.bot) == "invite"
        }
        return {
            "next_batch": f"s{len(self._events)}",
            "rooms": {"join": joined, "invite": invited},
            "to_device": {"events": self.to_device},
        }

    def _invite_state(self, room_id: str) -> list[Json]:
        return [
            event
            for event in self._events
            if event["room_id"] == room_id and "state_key" in event
        ]

    # -- connections -------------------------------------------------------------------

    def note_connection(self, connection: socket.socket, *, is_open: bool) -> None:
        with self._changed:
            if is_open:
                self._connections.add(connection)
            else:
                self._connections.discard(connection)


class MatrixProxy(FakeMatrix):
    """Passes the requests on to a real homeserver. The faults of the fake work here, too."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target
        self._client = httpx.Client(timeout=SECONDS + 60.0, trust_env=False)

    def close(self) -> None:
        super().close()
        self._client.close()

    def _check_token(self, call: Call, *, is_authorised: bool) -> None:
        pass

    def _act(self, call: Call, body: bytes) -> Answer:
        kept = {"authorization", "content-type"}
        headers = {name: call.headers[name] for name in kept & call.headers.keys()}
        url = self._target + call.raw
        answer = self._client.request(call.verb, url, content=body, headers=headers)
        media_type = answer.headers.get("content-type", "")
        return Answer(answer.status_code, answer.content, media_type)


def _cut(_: Call) -> Answer:
    raise _CutError


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        connection.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        connection.close()


_ENDS: Final = {
    "/account/whoami": "whoami",
    "/login": "login",
    "/displayname": "profile",
    "/sync": "sync",
    "/joined_members": "members",
    "/messages": "messages",
    "/join": "join",
    "/leave": "leave",
    "/keys/query": "query",
    "/keys/upload": "keys",
    "/upload": "upload",
}
_PARTS: Final = {
    "/state/": "state",
    "/event/": "event",
    "/typing/": "typing",
    "/relations/": "relations",
    "/download/": "download",
    "/send/m.reaction/": "react",
}


def _method_of(path: str, content: Json) -> str:
    for end, method in _ENDS.items():
        if path.endswith(end):
            return method
    for part, method in _PARTS.items():
        if part in path:
            return method
    relation = content.get("m.relates_to", {})
    return "edit" if relation.get("rel_type") == "m.replace" else "send"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    matrix: FakeMatrix

    def setup(self) -> None:
        super().setup()
        self.matrix.note_connection(self.connection, is_open=True)

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        self.matrix.note_connection(self.connection, is_open=False)

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError, _CutError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        del format, args

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_GET  # noqa: N815

    def _serve(self) -> None:
        split = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        content: Json = {}
        if self.headers.get("content-type") == "application/json":
            content = json.loads(body)
        path = unquote(split.path)
        room = path.partition("/rooms/")[2].partition("/")[0]
        call = Call(
            _method_of(path, content),
            path,
            dict(parse_qsl(split.query)),
            content,
            time.monotonic(),
            room,
            verb=self.command,
            raw=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
        )
        token = self.headers.get("authorization", "")
        try:
            answer = self.matrix.serve(
                call, body, is_authorised=token == f"Bearer {self.matrix.token}"
            )
        except _CutError:
            _reset(self.connection)
            raise
        self.send_response(answer.status)
        self.send_header("content-type", answer.media_type)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
