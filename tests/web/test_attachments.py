"""`/api/attachments`: bytes are stored, a message names them, and they come back harmless; nobody else's are to be had."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tenax.models import Reply
from tests.support.files import bomb, png, written
from tests.support.served import SECONDS, Page, Served
from tests.support.turns import set_up
from tests.web.test_conversations import answered

HTML = b"<script>fetch('/api/rules')</script>"


def put(
    page: Page, data: Any, name: str = "a.txt", status: int = 201, **headers: str
) -> Any:
    answer = page.http.post(
        "/api/attachments", params={"name": name}, content=data, headers=headers
    )
    assert answer.status_code == status, answer.text
    return answer.json()


def send(
    page: Page,
    conversation: str,
    *blobs: str,
    text: str = "Look",
    status: int = 202,
    key: str = "",
) -> Any:
    body = {
        "text": text,
        "attachments": [
            {"blob": each, "name": f"../{n}.html"} for n, each in enumerate(blobs)
        ],
    }
    headers: Any = {"Idempotency-Key": key or str(uuid4())}
    return page.post(
        f"/conversations/{conversation}/messages", body, status=status, **headers
    )


def test_what_is_attached_comes_back_as_what_it_is_and_does_nothing(page: Page) -> None:
    """A picture is shown, all else is saved; never as a page, whatever name and type it was sent with."""
    kinds = {
        png(): "image/png",
        HTML: "text/plain; charset=utf-8",
        written("Inside"): "application/pdf",
    }
    blobs = []
    for data, kind in kinds.items():
        claims: Any = {"Content-Type": "text/html"}
        found = put(page, data, "C:\\x\\evil.html", **claims)
        assert found["blob"] == hashlib.sha256(data).hexdigest()
        assert (found["name"], found["bytes"]) == ("evil.html", len(data))
        assert kind.startswith(found["media_type"])
        assert put(page, data, "again")["blob"] == found["blob"]
        blobs.append(found["blob"])
    name, key = page.new(), str(uuid4())
    stored = send(page, name, *blobs, text="", key=key)
    assert send(page, name, *blobs, text="", key=key) == stored
    row = answered(page, name)[0]
    parts: Any = row["parts"]
    assert [(part["type"], part["name"]) for part in parts] == [
        ("image", "0.html"),
        ("file", "1.html"),
        ("file", "2.html"),
    ]
    for blob, (data, kind) in zip(blobs, kinds.items(), strict=True):
        path = f"/api/conversations/{name}/attachments/{blob}"
        answer = page.http.get(
            path, headers={"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "image"}
        )
        assert (answer.status_code, answer.content) == (200, data)
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].endswith("; sandbox")
        how = answer.headers["content-disposition"].partition(";")[0]
        assert how == ("inline" if kind == "image/png" else "attachment")
        framed = page.http.get(
            path, headers={"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "iframe"}
        )
        assert framed.status_code == 403


def test_what_cannot_be_attached_is_refused_in_a_sentence_and_harms_nothing(
    page: Page,
) -> None:
    """A hundred megabytes are not read to their end; a bomb is not unpacked; a message names at most ten."""
    sent = 0

    def flood() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield bytes(1 << 20)

    try:
        assert (
            put(page, flood(), status=413)["detail"]
            == "The request is too large. The limit is 20,971,520 bytes."
        )
    except (
        httpx.WriteError,
        httpx.ReadError,
    ):
        # it stopped listening before we had said it all
        assert sent < 100
    assert put(page, bytes(9), status=400)["detail"].startswith(
        "a.txt is no text (UTF-8), no picture"
    )
    assert (
        put(page, bomb(), "b.pdf", 400)["detail"]
        == "b.pdf is a PDF that cannot be read."
    )
    assert put(page, png(claims=(9000, 9)), "c.png", 400)["hint"] == "Make it smaller."
    name, blob = page.new(), put(page, b"one")["blob"]
    before = page.get(f"/conversations/{name}/rows")
    send(page, name, *[blob] * 11, status=400)
    send(page, name, "../../etc/passwd", status=400)
    assert (
        send(page, name, blob, "0" * 64, status=400)["detail"]
        == "1.html is not kept here any more."
    )
    assert page.get(f"/conversations/{name}/rows") == before


def test_nobody_reaches_what_is_anothers(shared: Served, page: Page) -> None:
    """Not by naming its hash in a message, not by reading it; and nothing tells whether it is there."""
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    secret = f"aardvark {uuid4()}".encode()
    blob, name, hers = put(page, secret)["blob"], page.new(), berta.new()
    assert (
        page.http.get(f"/api/conversations/{name}/attachments/{blob}").status_code
        == 404
    )
    send(page, name, blob)
    answered(page, name)
    for path in (f"/conversations/{name}", f"/conversations/{hers}"):
        assert berta.http.get(f"/api{path}/attachments/{blob}").status_code == 404
    there, nowhere = (send(berta, hers, each, status=400) for each in (blob, "0" * 64))
    assert there == nowhere
    assert put(berta, secret)["blob"] == blob
    send(berta, hers, blob)
    assert (
        berta.http.get(f"/api/conversations/{hers}/attachments/{blob}").content
        == secret
    )


def test_killed_between_the_upload_and_the_message_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """The blob stands; the message names it after the restart. A terminal attaches to the same store."""
    set_up(tmp_path, [Reply("I see.")])
    with Served(tmp_path) as served:
        page = served.browser()
        name, found = (
            page.new(),
            [put(page, data)["blob"] for data in (png(), written("Deep inside"))],
        )
        served.kill_server()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            try:
                send(page, name, *found)
                break
            except (httpx.TransportError, AssertionError):
                time.sleep(0.05)
        rows = answered(page, name)
        assert [len(row.get("parts", ())) for row in rows] == [2, 0]  # type: ignore[arg-type]
        seen = page.http.get(f"/api/conversations/{name}/seen/{rows[1]['id']}").text
        assert "Deep inside" in seen
        assert "[picture 0.html: this model cannot see it]" in seen
        (tmp_path / "note.txt").write_text("the moon")
        asked = served.tenax(
            "-p", "Read it", "-c", name, "--attach", str(tmp_path / "note.txt")
        )
        assert (asked.returncode, asked.stdout) == (0, "I see.\n"), asked.stderr
        assert page.rows(name)[2]["parts"][0]["name"] == "note.txt"
        refused = served.tenax("-p", "Read it", "-c", name, "--attach", str(tmp_path))
        assert (refused.returncode, "is no file." in refused.stderr) == (1, True), (
            refused.stderr
        )
        assert len(page.rows(name)) == 4
