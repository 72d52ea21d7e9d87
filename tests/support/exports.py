"""Exports of other programs, made in their shape."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

from tests.support.served import ROOT

START = 1_700_000_000


def chatgpt_conversation(number: int, *texts: str) -> dict[str, Any]:
    """A conversation of ChatGPT: the person and the assistant take turns."""
    nodes: dict[str, Any] = {"root": {"id": "root", "parent": None, "children": []}}
    last = "root"
    for place, text in enumerate(texts):
        name = f"m{place}"
        nodes[last]["children"].append(name)
        message = {
            "id": name,
            "author": {"role": "assistant" if place % 2 else "user"},
            "create_time": START + number * 100 + place,
            "content": {"content_type": "text", "parts": [text]},
            "metadata": {},
        }
        nodes[name] = {"id": name, "parent": last, "children": [], "message": message}
        last = name
    return {
        "id": f"talk-{number}",
        "title": f"Talk {number}",
        "create_time": START + number * 100,
        "mapping": nodes,
        "current_node": last,
    }


def chatgpt_zip(*conversations: Any) -> bytes:
    """An export of ChatGPT."""
    return zipped({"conversations.json": json.dumps(conversations).encode()})


def many_chatgpt(count: int) -> bytes:
    """An export of ChatGPT with so many conversations."""
    every = (chatgpt_conversation(n, f"Question {n}", "Answer") for n in range(count))
    return chatgpt_zip(*every)


def zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target.getvalue()


# Python runs this when it starts: the process of an import reads as many conversations as the file allows.
_PACED = """
import sys
if "tenax.importers.worker" in sys.orig_argv:
    import pathlib, time
    from tenax.importers import storing
    unhindered, allowed = storing.Importer.store, pathlib.Path({file!r})
    read = 0
    def store(self, draft):
        global read
        while read >= int(allowed.read_text()):
            time.sleep(0.01)
        read += 1
        return unhindered(self, draft)
    storing.Importer.store = store
"""
_EVERYTHING = 1_000_000


class ImportPace:
    """How many conversations the process of an import may read before it waits.

    It holds for servers that are started with `env`, from `allow` to `allow`.
    """

    def __init__(self, home: Path, count: int = _EVERYTHING) -> None:
        self._file = home / "pace"
        self.env = {"PYTHONPATH": os.pathsep.join((str(home), str(ROOT)))}
        self.allow(count)
        (home / "sitecustomize.py").write_text(_PACED.format(file=str(self._file)))

    def allow(self, count: int = _EVERYTHING) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(count))
        new.replace(self._file)
