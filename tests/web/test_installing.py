"""The files with which a browser installs the page as an app. Nobody is signed in when a browser asks for them."""

from __future__ import annotations

import struct

import httpx

from tests.support.served import Served


def test_the_manifest_names_icons_of_the_right_size(slow: Served) -> None:
    answer = httpx.get(f"{slow.url}/manifest.webmanifest")
    assert answer.headers["content-type"] == "application/manifest+json"
    manifest = answer.json()
    assert (manifest["display"], manifest["start_url"]) == ("standalone", "./")
    assert {icon.get("purpose", "any") for icon in manifest["icons"]} == {
        "any",
        "maskable",
    }
    for icon in manifest["icons"]:
        picture = httpx.get(f"{slow.url}/{icon['src']}")
        assert picture.headers["content-type"] == "image/png"
        width, height = struct.unpack(">II", picture.content[16:24])
        assert icon["sizes"] == f"{width}x{height}"


def test_the_service_worker_is_asked_for_anew_and_names_files_that_exist(
    slow: Served,
) -> None:
    answer = httpx.get(f"{slow.url}/service.js")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-type"].startswith("text/javascript")
    files = [part for part in answer.text.split('"') if part.startswith("assets/")]
    assert any("/index-" in file for file in files)
    assert any("/worker-" in file for file in files)
    for file in files:
        assert httpx.get(f"{slow.url}/{file}").status_code == 200


def test_no_other_file_is_served_at_these_addresses(slow: Served) -> None:
    for path in ("/icons/other.png", "/icons/..%2findex.html", "/service.ts"):
        assert httpx.get(slow.url + path).status_code == 404
