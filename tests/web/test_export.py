"""`/api/export`: a conversation, or all of them, as a download; nobody gets another's."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import httpx
import msgspec

from tenax.export.lines import Conversation, End, decode_line
from tests.support.served import SECONDS, Page, Served
from tests.web.conftest import BOTH
from tests.web.test_conversations import answered

pytestmark = BOTH


def test_exports_are_downloads_of_ones_own_conversations(
    shared: Served, page: Page
) -> None:
    """The file is named after the title, and the browser fetches it without the key."""
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    name = page.new()
    page.say(name, "My word is okapi.")
    answered(page, name)
    page.http.patch(f"/api/conversations/{name}", json={"title": "Zoo/animals"})
    path = f"/api/conversations/{name}/export"
    kinds = {"markdown": "md", "json": "json", "html": "html"}
    for kind, ending in kinds.items():
        answer = page.http.get(path, params={"format": kind})
        assert answer.status_code == 200
        assert "My word is okapi." in answer.text
        disposition = answer.headers["content-disposition"]
        assert disposition.startswith("attachment; filename*=UTF-8''")
        assert disposition.endswith(f"%20Zoo%20animals.{ending}")
        assert answer.headers["content-security-policy"].endswith("; sandbox")
    rows: Any = msgspec.json.decode(page.http.get(path, params={"format": "json"}).text)
    assert [row["kind"] for row in rows["rows"]] == ["user", "assistant"]
    assert berta.http.get(path).status_code == 404
    assert page.http.get(path, params={"format": "pdf"}).status_code == 400
    wanted = [f"{path}?format=html", "/api/export?format=json"]
    one, everything = page.post("/addresses", {"paths": wanted})["addresses"]
    with httpx.Client(
        base_url=page.url, trust_env=False, verify=False, timeout=SECONDS
    ) as http:
        http.cookies.update(page.http.cookies)
        assert http.get(one).status_code == 200
        assert http.get(one.replace("html", "json")).status_code == 401
        answer = http.get(everything)
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    index = msgspec.json.decode(archive.read("index.json"))
    assert name in [entry["conversation"]["id"] for entry in index["conversations"]]
    hers = zipfile.ZipFile(io.BytesIO(berta.http.get("/api/export").content))
    assert all(b"okapi" not in hers.read(found) for found in hers.namelist())


def test_selected_conversations_are_one_download(shared: Served, page: Page) -> None:
    """In every format, by their ids; nobody selects another's."""
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    names = [page.new() for _ in range(2)]
    for name in names:
        page.say(name, "My word is quokka.")
        answered(page, name)
    page.new()
    chosen = {"format": "tenax", "id": names}
    answer = page.http.get("/api/export", params=chosen)
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.headers["content-disposition"].endswith(".jsonl")
    lines = [decode_line(line) for line in answer.content.splitlines()]
    assert [line.id for line in lines if isinstance(line, Conversation)] == names
    assert isinstance(lines[-1], End)
    path = page.post(
        "/addresses", {"paths": [f"/api/export?id={names[0]}&id={names[1]}"]}
    )
    with httpx.Client(
        base_url=page.url, trust_env=False, verify=False, timeout=SECONDS
    ) as http:
        http.cookies.update(page.http.cookies)
        archive = zipfile.ZipFile(io.BytesIO(http.get(path["addresses"][0]).content))
        other = path["addresses"][0].replace(names[1], names[0])
        assert http.get(other).status_code == 401
    assert len(archive.namelist()) == 3
    answer = page.http.get("/api/export", params={**chosen, "format": "openai"})
    assert len(answer.content.splitlines()) == 2
    one = page.http.get(
        f"/api/conversations/{names[0]}/export", params={"format": "tenax"}
    )
    assert len(one.content.splitlines()) < len(lines)
    assert berta.http.get("/api/export", params=chosen).status_code == 404
    hers = berta.http.get("/api/export", params={"format": "tenax"})
    assert names[0] not in hers.text
