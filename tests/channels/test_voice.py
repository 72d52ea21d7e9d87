"""Voice notes: kept as a sound, and turned into text by a service of the settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from tenax.config.schema import Speech
from tenax.config.secret import Secret
from tenax.events import MessageUser
from tenax.models.scripted import Reply
from tenax.parts import File, text_of
from tests.support.chats import ChatWorld
from tests.support.runs import with_timing
from tests.support.served import free_port
from tests.support.telegram import Attachment, FakeTelegram

KEY = "speech-key-1234"
SOUND = b"OggS and the rest of a sound"


class SpeechServer:
    """A service with `/v1/audio/transcriptions`. It waits while `answers` is not set."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = json.dumps({"text": " Call the printer. "}).encode()
        self.answers = threading.Event()
        self.answers.set()
        self.requests: list[tuple[str, Message, dict[str, bytes]]] = []
        """The path, the headers and the fields of every request."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                service.requests.append((self.path, self.headers, _fields(self, data)))
                service.answers.wait()
                self.send_response(service.status)
                self.send_header("content-length", str(len(service.body)))
                self.end_headers()
                self.wfile.write(service.body)

            def log_message(self, *_: object) -> None:
                """Write nothing to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _fields(request: BaseHTTPRequestHandler, data: bytes) -> dict[str, bytes]:
    """Return the fields of a form by name, and the name of the file as `filename`."""
    kind = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    form = BytesParser(policy=HTTP).parsebytes(kind + data)
    found: dict[str, bytes] = {}
    for part in form.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        found[str(name)] = content
        if part.get_filename():
            found["filename"] = str(part.get_filename()).encode()
            found["type"] = part.get_content_type().encode()
    return found


@pytest.fixture
def service() -> Iterator[SpeechServer]:
    with SpeechServer() as service:
        yield service


def world_with(telegram: FakeTelegram, home: Path, speech: Speech) -> ChatWorld:
    world = ChatWorld(telegram, "sqlite", home, [Reply("Hm.")] * 3)
    world.config = replace(world.config, speech=speech)
    return world


def parts_of(world: ChatWorld, number: int = 0) -> list[Any]:
    """Return the parts of a message of the only conversation."""
    (name,) = world.conversations()
    return list(world.events(name, MessageUser)[number].parts)


async def test_the_words_of_a_voice_note_are_marked_as_heard(
    telegram: FakeTelegram, tmp_path: Path, service: SpeechServer
) -> None:
    """The sound, the model's name and the key go to the service, and the words stand beside the sound."""
    speech = Speech(url=service.url, key=Secret(KEY, "a test"), model="whisper-9")
    async with world_with(telegram, tmp_path, speech) as world:
        world.say(files=[Attachment.voice(SOUND)])
        await world.said("Hm.")
        sound, words = parts_of(world)
        assert isinstance(sound, File)
        assert words.text == "[Heard in a voice note:]\nCall the printer."
    ((path, headers, fields),) = service.requests
    assert path == "/v1/audio/transcriptions"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (fields["file"], fields["type"]) == (SOUND, b"audio/ogg")
    assert fields["filename"].endswith((b".ogg", b".oga"))
    assert (fields["model"], fields["response_format"]) == (b"whisper-9", b"json")


async def test_nothing_is_sent_without_an_address(
    telegram: FakeTelegram, tmp_path: Path, service: SpeechServer
) -> None:
    """A key alone configures no service."""
    speech = Speech(key=Secret(KEY, "a test"))
    async with world_with(telegram, tmp_path, speech) as world:
        world.say(files=[Attachment.voice(SOUND)])
        await world.said("Hm.")
        assert "No service is set up" in parts_of(world)[1].text
    assert service.requests == []


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            401,
            b'{"error": {"message": "bad key speech-key-1234"}}',
            "rejected the API key",
        ),
        (500, b"oops", "500"),
        (200, b"<html>", "cannot read"),
        (200, b'{"text": "  "}', "heard no words"),
        (200, b'{"text": "' + b"x" * (2 << 20) + b'"}', "more than an answer has"),
    ],
    ids=["refused key", "server error", "no JSON", "silence", "too much"],
)
async def test_a_failed_service_is_told_and_the_sound_is_kept(
    telegram: FakeTelegram,
    tmp_path: Path,
    service: SpeechServer,
    status: int,
    body: bytes,
    words: str,
) -> None:
    """The message is stored with the sound and a sentence, and the sentence does not show the key."""
    service.status, service.body = status, body
    speech = Speech(url=service.url, key=Secret(KEY, "a test"))
    async with world_with(telegram, tmp_path, speech) as world:
        world.say(files=[Attachment.voice(SOUND)])
        await world.said("Hm.")
        sound, note = parts_of(world)
        assert isinstance(sound, File)
        assert note.text.startswith("[A voice note. Its words are not known: ")
        assert words in note.text
        assert KEY not in note.text


async def test_an_absent_service_is_told(
    telegram: FakeTelegram, tmp_path: Path
) -> None:
    """A service that does not run delays nothing."""
    speech = Speech(url=f"http://127.0.0.1:{free_port()}/v1")
    async with world_with(telegram, tmp_path, speech) as world:
        world.say(files=[Attachment.voice(SOUND)])
        await world.said("Hm.")
        assert "nothing is listening" in parts_of(world)[1].text


async def test_a_service_that_never_answers_has_a_limit(
    telegram: FakeTelegram, tmp_path: Path, service: SpeechServer
) -> None:
    """After `timeout_seconds` the message is stored with the sound."""
    service.answers.clear()
    speech = Speech(url=service.url, timeout_seconds=0.2)
    async with world_with(telegram, tmp_path, speech) as world:
        world.say(files=[Attachment.voice(SOUND)])
        await world.said("Hm.")
        assert "has not answered within 0.2 seconds" in parts_of(world)[1].text


async def test_slow_words_come_as_a_message_of_their_own(
    telegram: FakeTelegram, tmp_path: Path, service: SpeechServer
) -> None:
    """A service that needs longer than a message may wait delays no message."""
    service.answers.clear()
    world = world_with(telegram, tmp_path, Speech(url=service.url))
    world.config = with_timing(world.config, channel_file_seconds=0.2)
    async with world:
        world.say(files=[Attachment.voice(SOUND)])
        await telegram.wait(lambda: world.chat() == ["Hm."])
        assert "still being fetched" in parts_of(world)[0].text
        service.answers.set()
        await telegram.wait(lambda: world.chat() == ["Hm.", "Hm."])
        late = parts_of(world, 1)
        assert isinstance(late[1], File)
        (name,) = world.conversations()
        message = world.events(name, MessageUser)[1]
        assert "[Heard in a voice note:]\nCall the printer." in text_of(message.parts)
