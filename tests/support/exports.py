"""Exports of other programs, made in their shape."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

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
