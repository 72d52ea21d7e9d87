"""Devices: who is signed in is listed, and can be signed out, at once, from the page and from the terminal."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import tenax
from tenax.config import load
from tenax.errors import ConfigError, NoSuchConversation
from tenax.journal.devices import DEVICES_MAX, Devices
from tenax.testing.clock import SimClock
from tests.support.damage import damage
from tests.support.served import Page, Served, code_of, free_port
from tests.web.conftest import BOTH

DAY_US = 24 * 3600 * 1_000_000


def own(page: Page) -> str:
    """The id of the device of this page."""
    (found,) = [
        device["id"] for device in page.get("/devices")["devices"] if device["current"]
    ]
    return str(found)


def is_out(page: Page) -> bool:
    """Whether its requests are refused. The server hears of another process within half a second."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if page.http.get("/api/devices").status_code == 401:
            return True
    return False


def last_frame(page: Page, revoke: Callable[[], object]) -> str:
    """The last frame of a stream that is open while this happens."""
    kind = ""
    with page.stream("-") as stream, contextlib.suppress(EOFError):
        stream.until("list")
        revoke()
        while True:
            kind, _ = stream.next()
    return kind


@BOTH
def test_a_revoked_device_is_out_and_its_streams_end(shared: Served) -> None:
    """From the page, from the terminal, one or all; the others stay."""
    links = [shared.tenax("link", "--user", "dora").stdout.strip() for _ in range(4)]
    one, two, three, four = (shared.browser(link) for link in links)
    assert len(one.get("/devices")["devices"]) == 4
    id = own(two)  # noqa: A001
    assert last_frame(two, lambda: one.http.delete(f"/api/devices/{id}")) == "bye"
    assert two.http.get("/api/setup").status_code == 401
    assert "tenax link" in two.http.get("/api/setup").json()["hint"]
    id = own(three)  # noqa: A001
    assert last_frame(three, lambda: shared.tenax("link", "--revoke", id)) == "bye"
    assert is_out(three)
    assert {device["id"] for device in one.get("/devices")["devices"]} == {
        own(one),
        own(four),
    }
    assert last_frame(four, lambda: one.http.delete("/api/devices")) == "bye"
    assert (
        one.http.get("/api/setup").status_code,
        four.http.get("/api/setup").status_code,
    ) == (401, 401)


def test_a_device_that_is_revoked_while_it_sends_does_nothing(shared: Served) -> None:
    """The headers came before, and the rest of the body after."""
    links = [shared.tenax("link", "--user", "hans").stdout.strip() for _ in range(2)]
    one, two = (shared.browser(link) for link in links)
    body = b'{"text": "as hans", "how": "queue"}'
    path = f"/api/conversations/{two.new()}/messages"
    proof = [f"{name}: {value}" for name, value in two.http.build_request("POST", path).headers.items()
             if name in {"host", "cookie", "tenax-key", "sec-fetch-site"}]  # fmt: skip
    head = [f"POST {path} HTTP/1.1", *proof, "Idempotency-Key: slow", "Content-Type: application/json",
            f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close", "", ""]  # fmt: skip
    place, port = shared.url.removeprefix("http://").split(":")
    with socket.create_connection((place, int(port)), timeout=60) as raw:
        raw.sendall("\r\n".join(head).encode())
        assert raw.recv(65536).startswith(b"HTTP/1.1 100 "), (
            "the guard has let it in, and the body is read"
        )
        raw.sendall(body[:5])
        one.http.delete(f"/api/devices/{own(two)}")
        raw.sendall(body[5:])
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 401 "), answer


def test_the_terminal_lists_and_revokes(shared: Served, page: Page) -> None:
    """Of all users, or of one. An id that is none is told in a sentence."""
    link = shared.tenax("link", "--user", "emil").stdout.strip()
    emil = shared.browser(link)
    id = own(emil)  # noqa: A001
    listed = shared.tenax("link", "--list").stdout
    assert f"{id}  emil  since " in listed
    assert own(page) in listed
    assert shared.tenax("link", "--list", "--user", "emil").stdout.count("\n") == 1
    refused = shared.tenax("link", "--revoke", id, "--user", "anna")
    assert (
        refused.returncode,
        refused.stderr.startswith(f"tenax: There is no device {id}."),
    ) == (1, True)
    done = shared.tenax("link", "--revoke", "all", "--user", "emil")
    assert (done.returncode, done.stdout) == (0, "Signed out: 1 browser.\n")
    assert is_out(emil)
    assert shared.tenax("link", "--list", "--revoke", "all").returncode == 2
    assert page.http.get("/api/setup").status_code == 200


def test_to_sign_out_everywhere_ends_unused_links_too(shared: Served) -> None:
    """Those of this user: by the page, and by the terminal, also where no browser is signed in."""
    links = [
        shared.tenax("link", "--user", name).stdout.strip()
        for name in ("ida", "ida", "ida", "jan")
    ]
    assert shared.browser(links[0]).http.delete("/api/devices").status_code == 204
    stranger = Page(shared.url)
    assert stranger.sign_in(links[1]).status_code == 403
    other = shared.tenax("link", "--user", "ida").stdout.strip()
    assert shared.tenax("link", "--revoke", "all", "--user", "ida").returncode == 0
    assert [
        stranger.sign_in(link).status_code for link in (links[2], other, links[3])
    ] == [403, 403, 200]
    stranger.http.close()


def test_an_odd_file_among_the_codes_keeps_nobody_signed_in(shared: Served) -> None:
    """A file that is no text, a link to nowhere and a folder: all browsers are out, and the links end."""
    codes = next(shared.home.rglob("web/codes"))
    (codes / "folder").mkdir()
    try:
        for revoke in ("page", "terminal"):
            first, link = (
                shared.tenax("link", "--user", "kurt").stdout.strip() for _ in range(2)
            )
            page = shared.browser(first)
            (codes / "odd").write_bytes(b"\xff\xfe")
            (codes / "nowhere").symlink_to(codes / "none")
            if revoke == "page":
                assert page.http.delete("/api/devices").status_code == 204
            else:
                assert (
                    shared.tenax("link", "--revoke", "all", "--user", "kurt").returncode
                    == 0
                )
            assert is_out(page)
            assert Page(shared.url).sign_in(link).status_code == 403
            assert not (codes / "odd").exists()
    finally:
        (codes / "folder").rmdir()


def test_nobody_sees_or_revokes_anothers_devices(shared: Served, page: Page) -> None:
    """It is as if they did not exist."""
    berta = shared.browser(shared.tenax("link", "--user", "berta").stdout.strip())
    mine = own(page)
    assert mine not in [device["id"] for device in berta.get("/devices")["devices"]]
    assert berta.http.delete(f"/api/devices/{mine}").status_code == 404
    assert berta.http.delete("/api/devices").status_code == 204
    assert page.http.get("/api/setup").status_code == 200


def test_a_link_for_somebody_else_does_nothing_until_it_is_confirmed(
    shared: Served,
) -> None:
    """The link stays good; one for oneself takes the place of the device before."""
    page = shared.browser(shared.tenax("link", "--user", "fritz").stdout.strip())
    before, cookies = own(page), dict(page.http.cookies)
    link = shared.tenax("link", "--user", "gerda").stdout.strip()
    asked = page.sign_in(link)
    assert asked.json() == {"user": "gerda", "key": "", "instead_of": "fritz"}
    assert "set-cookie" not in asked.headers
    assert own(page) == before
    page.http.cookies.clear()  # another port of the host can do that
    code = {"code": code_of(link), "known": "fritz"}
    assert page.http.post("/api/sign-in", json=code).json() == asked.json()
    page.http.cookies.update(cookies)
    assert (
        page.sign_in(shared.tenax("link", "--user", "fritz").stdout.strip()).json()[
            "user"
        ]
        == "fritz"
    )
    after = page.get("/devices")["devices"]
    assert [each["id"] for each in after] == [own(page)]
    assert before != own(page)
    assert page.sign_in(link, replace=True).json()["user"] == "gerda"
    assert page.get("/setup")["user"] == "gerda"
    used = page.sign_in(link).json()
    assert used == {"user": "gerda", "key": "", "instead_of": ""}, (
        "who is in already is let through"
    )


def test_a_sign_in_outlives_the_server_and_ends_with_its_days(tmp_path: Path) -> None:
    """The cookie says so too; the store keeps no secret of it."""
    file = tmp_path / "config.toml"
    file.write_text("[serve]\nsign_in_days = 2\n")
    with Served(tmp_path, env={"TENAX_CONFIG": str(file)}) as served:
        page = Page(served.url)
        answer = page.sign_in(served.link)
        assert "max-age=172800" in answer.headers["set-cookie"].lower()
        assert served.stop()[0] == 0
        held = b"".join(
            path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
        )
        cookie = next(iter(page.http.cookies.values())).partition(".")
        assert cookie[0].encode() in held
        for secret in (cookie[2], answer.json()["key"]):
            assert secret.encode() not in held
        served.start()
        page.http.base_url = served.url
        assert page.http.get("/api/setup").status_code == 200


def test_a_device_of_another_port_is_refused(tmp_path: Path) -> None:
    """Another program may have the port now: the browser gives it the cookie, and the key that was kept for the port."""
    with Served(tmp_path) as served:
        page = served.browser()
        before = served.url.rpartition(":")[2]
        assert page.http.get("/api/setup").status_code == 200
        assert served.stop()[0] == 0
        served.env["TENAX_PORT"] = str(free_port())
        served.start()
        after = served.url.rpartition(":")[2]
        assert before != after
        stolen = f"tenax_{after}={page.http.cookies[f'tenax_{before}']}"
        page.http.cookies.clear()
        assert (
            page.http.get("/api/setup", headers={"cookie": stolen}).status_code == 401
        )


@pytest.mark.parametrize("days", ["0", "401", '"90"', "true"])
def test_days_that_are_none_are_refused(tmp_path: Path, days: str) -> None:
    """In a sentence that names the setting."""
    file = tmp_path / "config.toml"
    file.write_text(f"[serve]\nsign_in_days = {days}\n")
    with pytest.raises(ConfigError, match=r"serve\.sign_in_days"):
        load({"TENAX_HOME": str(tmp_path), "TENAX_CONFIG": str(file)})


def test_old_devices_and_too_many_lose_their_rows(store_url: str) -> None:
    """A device ends with its days, whoever asks; the one not seen for the longest time makes room."""
    clock = SimClock()
    with tenax.open(store_url, clock=clock) as journal:
        devices = Devices(journal, days=90)
        first = devices.add("ada", "First", 80)
        assert devices.find(first.cookie) == first.device
        assert first.device.has_key(first.key, 80)
        assert not first.device.has_key("", 80)
        assert not first.device.has_key(first.key, 81)
        assert devices.find(f"{first.device.id}.x") is None
        clock.advance(89 * DAY_US / 1e6)
        last = devices.add("ada", "Last", 80)
        assert [element.name for element in devices.all("ada")] == ["Last", "First"]
        clock.advance(2 * DAY_US / 1e6)
        assert devices.find(first.cookie) is None
        assert devices.signed_in({first.device.id, last.device.id, "none"}) == {
            last.device.id
        }
        for n in range(DEVICES_MAX):
            clock.advance(1)
            newest = devices.add("ada", f"{n}", 80).device
        his = devices.add("bob", "His", 80).device
        assert len(devices.all("ada")) == DEVICES_MAX
        assert devices.find(last.cookie) is None
        clock.advance(91 * DAY_US / 1e6)  # with more days they would be signed in again
        assert devices.all() == []
        with pytest.raises(NoSuchConversation):
            devices.revoke(newest.id, "bob")
        devices.revoke(newest.id, "ada")
        assert devices.revoke_all("ada") == DEVICES_MAX - 1
        assert Devices(journal, days=400).all() == [
            msgspec.structs.replace(his, key_hash="")
        ]


@pytest.mark.parametrize("column", ["id", "owner", "name"])
def test_a_damaged_row_keeps_nobody_else_from_signing_in_and_out(
    tmp_path: Path, column: str
) -> None:
    """Its own user can sign in as well, and all browsers of all users can be signed out."""
    path = tmp_path / "tenax.db"
    with tenax.open(f"sqlite:///{path}") as journal:
        devices = Devices(journal, days=90)
        devices.add("bob", "His", 80)
        damage(path, f"update devices set {column} = cast(x'ff' as text)")
        one, two, three = (
            devices.add("ada", name, 80).device.id for name in ("One", "Two", "Three")
        )
        devices.add("bob", "His second", 80)
        devices.revoke(one)
        devices.revoke(two, "ada")
        assert [device.id for device in devices.all("ada")] == [three]
        assert devices.signed_in({one, three}) == {three}
        assert devices.revoke_all("ada") == 1
        assert devices.revoke_all(None) == 2


def test_a_new_link_signs_in_the_browser_of_a_damaged_row(
    shared: Served, page: Page
) -> None:
    """Other users notice nothing, and to sign out everywhere ends open streams as ever."""
    store, port = (
        next(shared.home.rglob("tenax.db")),
        int(shared.url.rpartition(":")[2]),
    )
    with tenax.open(f"sqlite:///{store}") as journal:
        # the server has not read the row yet
        lutz = Devices(journal, days=90).add("lutz", "His", port)
    damage(store, "update devices set name = cast(x'ff' as text) where owner = 'lutz'")
    try:
        assert own(page)
        browser = Page(shared.url)
        browser.http.cookies[f"tenax_{port}"] = lutz.cookie
        assert (
            browser.http.get("/api/setup", headers={"Tenax-Key": lutz.key}).status_code
            == 503
        )
        assert (
            browser.sign_in(
                shared.tenax("link", "--user", "lutz").stdout.strip()
            ).status_code
            == 200
        )
        assert last_frame(browser, lambda: browser.http.delete("/api/devices")) == "bye"
        browser.http.close()
    finally:
        damage(store, "delete from devices where owner = 'lutz'")


def test_a_page_makes_a_link_for_another_browser(shared: Served) -> None:
    """The link is of the same user, works once, and ends with "sign out everywhere"."""
    page = shared.browser(shared.tenax("link", "--user", "emil").stdout.strip())
    code = page.post("/devices/links")["code"]
    other = shared.browser(f"{shared.url}/link#code={code}")
    assert len(other.get("/devices")["devices"]) == 2
    used = page.http.post("/api/sign-in", json={"code": code, "known": "somebody"})
    assert used.json().get("key", "") == ""
    unused = page.post("/devices/links")["code"]
    assert page.http.delete("/api/devices").status_code == 204
    with pytest.raises(AssertionError):
        shared.browser(f"{shared.url}/link#code={unused}")
    assert is_out(page)
    assert page.http.post("/api/devices/links").status_code == 401


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", r""),
        ("localhost", r""),
        ("0.0.0.0", r"(http://(?!127\.)[0-9.]+:PORT)?"),  # empty without a network
    ],
)
def test_the_address_for_other_machines_is_told(
    tmp_path: Path, host: str, address: str
) -> None:
    with Served(tmp_path, env={"TENAX_HOST": host}) as served:
        port = served.url.rpartition(":")[2]
        served.url = f"http://127.0.0.1:{port}"
        told = served.browser().get("/devices")["address"]
    assert re.fullmatch(address.replace("PORT", port), told)
