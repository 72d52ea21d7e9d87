"""`/api/conversations/{id}/files`: a person looks at the files of a conversation, and nothing else can be reached."""

from __future__ import annotations

import io
import os
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tenax.errors import NoSuchFile, TooLarge, ToolFailed
from tenax.models import Reply
from tenax.tools.files import browse
from tenax.tools.files.browse import Browser
from tests.support.files import png, written
from tests.support.served import SECONDS, Page, Served
from tests.support.turns import set_up

HTML = "<script>fetch('/api/rules')</script><h1>Hello</h1>"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Served]:
    set_up(home, [Reply("Done.")])
    with Served(home) as served:
        yield served


@pytest.fixture(scope="module")
def anna(server: Served) -> Page:
    return server.browser()


@pytest.fixture(scope="module")
def berta(server: Served) -> Page:
    return server.browser(server.tenax("link", "--user", "berta").stdout.strip())


@pytest.fixture
def work(home: Path, anna: Page) -> Path:
    """The folder of the owner, empty."""
    folder = home / "work"
    for name in sorted(folder.rglob("*"), reverse=True) if folder.exists() else ():
        name.rmdir() if name.is_dir() and not name.is_symlink() else name.unlink()
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def conversation(anna: Page) -> str:
    return anna.new()


def listed(page: Page, conversation: str, path: str = "") -> Any:
    address = f"/api/conversations/{conversation}/files"
    answer = page.http.get(address, params={"path": path})
    assert answer.status_code == 200, answer.text
    return answer.json()


def content(page: Page, conversation: str, path: str, **query: Any) -> httpx.Response:
    return page.http.get(
        f"/api/conversations/{conversation}/files/content",
        params={"path": path, **query},
    )


def test_a_folder_is_listed_folders_first_with_size_and_time(
    anna: Page, conversation: str, work: Path, home: Path
) -> None:
    """The folder itself is named for the owner; a missing folder is no error at the top."""
    (work / "src").mkdir()
    (work / "src" / "a.py").write_text("print()\n")
    (work / "B.txt").write_text("abc")
    (work / "link").symlink_to("B.txt")
    os.mkfifo(work / "pipe")
    found = listed(anna, conversation)
    assert (found["exists"], found["folder"], found["omitted"]) == (
        True,
        str(home / "work"),
        0,
    )
    entries = [
        (entry["name"], entry["path"], entry["kind"], entry["size"])
        for entry in found["entries"]
    ]
    assert entries == [
        ("src", "src", "dir", 0),
        ("B.txt", "B.txt", "file", 3),
        ("link", "link", "link", 0),
        ("pipe", "pipe", "other", 0),
    ]
    assert found["entries"][0]["modified"].startswith("20")
    (inside,) = listed(anna, conversation, "src/")["entries"]
    assert (inside["name"], inside["path"]) == ("a.py", "src/a.py")
    answer = anna.http.get(
        f"/api/conversations/{conversation}/files", params={"path": "none"}
    )
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "There is no file none.",
    )


def test_a_folder_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    browser = Browser(tmp_path / "new", [])
    assert browser.list_folder("") == browse.Listing(exists=False, entries=[])
    with pytest.raises(NoSuchFile):
        browser.open_file("a")


def test_a_long_folder_is_cut_with_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "ENTRIES_MAX", 3)
    for number in range(5):
        (tmp_path / f"{number}").touch()
    found = Browser(tmp_path, []).list_folder("")
    assert ([entry.name for entry in found.entries], found.omitted) == (
        ["0", "1", "2"],
        2,
    )


def test_names_with_hidden_characters_are_shown_harmlessly(tmp_path: Path) -> None:
    """A name that cannot be requested has no path; one that could deceive a reader is shown with a mark."""
    for name in (
        "a\nb",
        "c\u202etxt.exe",
        "\x1b[2J",
        b"\xff".decode(errors="surrogateescape"),
    ):
        (tmp_path / name).touch()
    found = Browser(tmp_path, []).list_folder("").entries
    assert {(entry.name, entry.path) for entry in found} == {
        ("a\ufffdb", None),
        ("c\ufffdtxt.exe", "c\u202etxt.exe"),
        ("\ufffd[2J", None),
        ("\ufffd", None),
    }
    packed = b"".join(Browser(tmp_path, []).pack_folder(""))
    assert zipfile.ZipFile(io.BytesIO(packed)).namelist() == ["c\u202etxt.exe"]


def test_a_file_is_shown_harmlessly_or_saved(
    anna: Page, conversation: str, work: Path
) -> None:
    """The bytes decide, not the name: a page is shown without scripts, a program is saved."""
    kinds = {
        "a.txt": (b"text \xc3\xa4", "text/plain; charset=utf-8", "inline"),
        "a.js": (b"alert(1)", "text/plain; charset=utf-8", "inline"),
        "evil.html": (HTML.encode(), "text/html; charset=utf-8", "inline"),
        "evil.svg": (b"<svg/>", "image/svg+xml; charset=utf-8", "inline"),
        "wrong.html": (png(), "image/png", "inline"),
        "a.pdf": (written("Inside"), "application/pdf", "inline"),
        "evil.png": (b"\x7fELF\0\0", "application/octet-stream", "attachment"),
        "latin.txt": (b"\xe4\xe4", "application/octet-stream", "attachment"),
        "empty": (b"", "text/plain; charset=utf-8", "inline"),
    }
    for name, (data, kind, how) in kinds.items():
        (work / name).write_bytes(data)
        answer = content(anna, conversation, name)
        assert (answer.status_code, answer.content) == (200, data)
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        disposition = answer.headers["content-disposition"]
        assert disposition == f"{how}; filename*=UTF-8''{name}"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert policy.endswith("; sandbox")
        saved = content(anna, conversation, name, download=1)
        assert saved.content == data
        assert saved.headers["content-disposition"].startswith("attachment;")


def test_a_large_file_is_only_downloaded(
    anna: Page, conversation: str, work: Path
) -> None:
    size = 21 * 1024 * 1024
    with (work / "large.txt").open("wb") as file:
        file.write(b"x")
        file.truncate(size)
    (work / "large.txt").write_bytes(b"x" * size)
    refused = content(anna, conversation, "large.txt")
    assert refused.status_code == 413
    assert refused.json()["hint"] == "Download it instead."
    saved = content(anna, conversation, "large.txt", download=1)
    assert (saved.status_code, len(saved.content)) == (200, size)


def test_a_client_that_reads_nothing_keeps_no_memory_and_no_file(
    server: Served, anna: Page, conversation: str, work: Path
) -> None:
    """Twenty of them ask for a large file and go away. The server still answers, and has closed the files."""
    (work / "large").write_bytes(bytes(30 * 1024 * 1024))
    port = int(server.url.rpartition(":")[2])
    cookie = "; ".join(f"{jar.name}={jar.value}" for jar in anna.http.cookies.jar)
    request = (
        f"GET /api/conversations/{conversation}/files/content?path=large HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n"
        f"Tenax-Key: {anna.http.headers['Tenax-Key']}\r\n\r\n"
    )
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for client in clients:
        client.sendall(request.encode())
        client.settimeout(SECONDS)
        assert client.recv(12) == b"HTTP/1.1 200"
    status = Path(f"/proc/{server.server()}/status").read_text()
    (resident,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    assert int(resident.split()[1]) < 400 * 1024, "twenty files of 30 MB are not held"
    for client in clients:
        client.close()
    descriptors = Path(f"/proc/{server.server()}/fd")
    while any(
        os.path.realpath(link).endswith("/large") for link in descriptors.iterdir()
    ):
        listed(anna, conversation)


@pytest.mark.parametrize(
    "path",
    [
        "../config.toml",
        "a/../../config.toml",
        "/etc/passwd",
        "%2e%2e/config.toml",
        "..\\config.toml",
        "a\0b",
        "a\nb",
        "",
        "out",
        "out/passwd",
        "pipe",
        "socket",
        "device",
        "src",
    ],
)
def test_no_path_leads_out_of_the_folder(
    anna: Page, conversation: str, work: Path, path: str
) -> None:
    """Neither dots nor links nor special files: each is refused in a sentence, and nothing waits."""
    (work / "src").mkdir()
    (work / "out").symlink_to("/etc")
    (work / "device").symlink_to("/dev/zero")
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as place:
        before = Path.cwd()
        os.chdir(work)
        try:
            place.bind("socket")
        finally:
            os.chdir(before)
    for address in ("content", "zip"):
        answer = anna.http.get(
            f"/api/conversations/{conversation}/files/{address}", params={"path": path}
        )
        if address == "zip" and path in {"", "src"}:
            assert answer.status_code == 200
            continue
        assert answer.status_code in {400, 404}, answer.text
        assert "root:" not in answer.text
    if path not in {"", "src"}:
        answer = anna.http.get(
            f"/api/conversations/{conversation}/files", params={"path": path}
        )
        assert answer.status_code in {400, 404}


def test_a_link_that_takes_the_place_of_a_folder_leads_nowhere(tmp_path: Path) -> None:
    """Also if it is put there between two requests, or while a folder is packed."""
    work, other = tmp_path / "work", tmp_path / "other"
    (work / "src").mkdir(parents=True)
    (work / "src" / "a").write_text("mine")
    (work / "z").write_text("mine too")
    other.mkdir()
    (other / "a").write_text("secret")
    browser = Browser(work, [])
    opened = browser.open_file("src/a")
    pieces = browser.pack_folder("")
    (work / "src").rename(work / "moved")
    (work / "src").symlink_to(other)
    assert os.read(opened.descriptor, 10) == b"mine"
    os.close(opened.descriptor)
    for look in (browser.list_folder, browser.pack_folder):
        with pytest.raises(ToolFailed, match="src is a link"):
            look("src")
    with pytest.raises(ToolFailed, match="src is a link"):
        browser.open_file("src/a")
    packed = zipfile.ZipFile(io.BytesIO(b"".join(pieces)))
    assert packed.namelist() == ["z"]
    # The folder itself is replaced.
    work.rename(tmp_path / "away")
    work.symlink_to(other)
    with pytest.raises(ToolFailed, match="not the folder any more"):
        browser.list_folder("")


def test_files_of_tenax_in_the_folder_do_not_exist(tmp_path: Path) -> None:
    """A store or a settings file that lies in the folder is neither listed nor read nor packed."""
    (tmp_path / "own").mkdir()
    for name in ("own/store.db", "own/store.db-wal", "config.toml", "config.txt"):
        (tmp_path / name).write_text("x")
    browser = Browser(tmp_path, [tmp_path / "own/store.db", tmp_path / "config.toml"])
    names = [entry.name for entry in browser.list_folder("").entries]
    assert names == ["own", "config.txt"]
    assert browser.list_folder("own").entries == []
    assert browser.hides("own/store.db")
    assert not browser.hides("config.txt")
    for path in ("own/store.db", "own/./store.db-wal", "config.toml"):
        with pytest.raises(NoSuchFile):
            browser.open_file(path)
    packed = b"".join(browser.pack_folder(""))
    assert zipfile.ZipFile(io.BytesIO(packed)).namelist() == ["config.txt"]


def test_every_user_sees_the_own_folder_only(
    anna: Page, berta: Page, conversation: str, work: Path, home: Path
) -> None:
    """Not the other's conversation, not the other's files, and not where the folder is."""
    (work / "secret.txt").write_text("aardvark")
    hers = berta.new()
    (home / "users/berta/files/own.txt").write_text("hers")
    found = listed(berta, hers)
    assert [entry["name"] for entry in found["entries"]] == ["own.txt"]
    assert found["folder"] == ""
    assert content(berta, hers, "own.txt").text == "hers"
    for path in ("secret.txt", "../../../work/secret.txt"):
        assert content(berta, hers, path).status_code in {400, 404}
    assert content(berta, conversation, "secret.txt").status_code == 404
    assert content(anna, conversation, "own.txt").status_code == 404
    for address in ("files", "files/zip", "files/names"):
        path = f"/api/conversations/{conversation}/{address}"
        assert berta.http.get(path).status_code == 404
    disposition = berta.http.get(f"/api/conversations/{hers}/files/zip").headers
    assert disposition["content-disposition"].endswith("''files.zip")


def test_a_folder_is_a_zip(anna: Page, conversation: str, work: Path) -> None:
    """Without links. A sub-folder has paths of its own."""
    (work / "src/deep").mkdir(parents=True)
    (work / "src/deep/a.bin").write_bytes(os.urandom(600_000))
    (work / "top.txt").write_text("top")
    (work / "link").symlink_to("/etc/passwd")
    (work / "loop").symlink_to(".")
    found = {}
    for path in ("", "src"):
        answer = anna.http.get(
            f"/api/conversations/{conversation}/files/zip", params={"path": path}
        )
        assert answer.headers["content-type"] == "application/zip"
        archive = zipfile.ZipFile(io.BytesIO(answer.content))
        assert archive.testzip() is None
        found[path] = archive.namelist()
        name = "src/deep/a.bin"[len(path) + bool(path) :]
        assert archive.read(name) == (work / "src/deep/a.bin").read_bytes()
    assert found == {"": ["src/deep/a.bin", "top.txt"], "src": ["deep/a.bin"]}


def test_a_folder_that_is_too_large_is_no_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence comes before the first byte, so that nobody gets half of a file."""
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(b"1234")
    for limit, value in (("ZIP_FILES_MAX", 3), ("ZIP_BYTES_MAX", 15)):
        with monkeypatch.context() as patch:
            patch.setattr(browse, limit, value)
            with pytest.raises(TooLarge, match="too much for a zip"):
                Browser(tmp_path, []).pack_folder("")


def test_names_are_completed(anna: Page, conversation: str, work: Path) -> None:
    """In any case, by a part of the path, without ignored files; special characters mean themselves."""
    (work / "src/inner").mkdir(parents=True)
    for name in ("src/Main.py", "src/inner/main.ts", "a[1].txt", "ignored.py"):
        (work / name).touch()
    (work / ".gitignore").write_text("ignored.*\n")

    def names(query: str) -> list[str]:
        found: list[str] = anna.get(
            f"/conversations/{conversation}/files/names", query=query
        )["names"]
        return found

    assert names("MAIN") == ["src/Main.py", "src/inner/main.ts"]
    assert names("src/ma") == ["src/Main.py"]
    assert names("inner/") == ["src/inner/main.ts"]
    assert names("[1]") == ["a[1].txt"]
    assert names("*") == []
    assert names("ignored") == []
    assert names("") == [".gitignore", "a[1].txt", "src/Main.py", "src/inner/main.ts"]
    assert names("../") == []
    assert names("\0") == []
    for number in range(60):
        (work / f"many{number:02}").touch()
    assert len(names("many")) == 50


def test_an_address_of_a_file_is_signed_with_its_path(
    anna: Page, berta: Page, conversation: str, work: Path
) -> None:
    """The browser shows a picture or a frame without the key. Another path, or another user, needs another address."""
    (work / "a b&c=d.png").write_bytes(png())
    (work / "other.txt").write_text("other")
    path = f"/api/conversations/{conversation}/files/content"
    wanted = f"{path}?path={quote('a b&c=d.png', safe='')}"
    zipped = f"/api/conversations/{conversation}/files/zip"
    address, archive = anna.post("/addresses", {"paths": [wanted, zipped]})["addresses"]
    assert address.startswith(f"{wanted}&signed=")
    for bad in (f"{wanted}&signed=1", "/api/setup?path=x", f"{wanted}\n"):
        assert (
            anna.http.post("/api/addresses", json={"paths": [bad]}).status_code == 400
        )
    with httpx.Client(
        base_url=anna.url, trust_env=False, verify=False, timeout=SECONDS
    ) as http:

        def status(address: str, element: str = "image") -> int:
            headers = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": element}
            return http.get(address, headers=headers).status_code

        assert status(address) == 401
        http.cookies.update(anna.http.cookies)
        assert [status(address, element) for element in ("image", "iframe")] == [
            200,
            200,
        ]
        assert status(address, "script") == 403
        signature = address.partition("&signed=")[2]
        assert status(f"{path}?path=other.txt&signed={signature}") == 401
        assert status(f"{wanted}&download=1&signed={signature}") == 401
        assert status(f"{address}&path=other.txt") == 401
        assert status(f"{path}?signed={signature}&path=other.txt") == 401
        assert status(archive, "document") == 200
        assert status(archive, "image") == 403
        http.cookies.clear()
        http.cookies.update(berta.http.cookies)
        assert status(address) == 401
