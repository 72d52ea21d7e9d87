"""`/frames`: documents for sandboxed frames in the page: diagrams, previews of HTML, and pictures of other sites.

A frame shows content of strangers. So the frame has an opaque origin (`sandbox allow-scripts`) and a policy that allows
the scripts of the document by their hashes, and no network. The page sends the content with `postMessage`, and accepts
a height or an error in return. The policy of the page itself stays as strict as before.

A picture of another site is loaded by the browser, after a click. The policy of that frame allows the origin of the
picture. The server never fetches the picture, and does not get to know its path.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from base64 import b64encode
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from tenax.web.problems import problem
from tenax.web.server_state import state_of

__all__ = ["FOLDER", "get_frame"]

FOLDER: Final = Path(__file__).with_name("page") / "frames"
_NAME: Final = re.compile(r"[a-z]{1,20}", re.ASCII)
_ORIGIN: Final = re.compile(
    r"https://[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?(?::[0-9]{1,5})?", re.ASCII
)
_SCRIPT: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_POLICY: Final = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src {pictures}; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)


class _Document(NamedTuple):
    html: bytes
    zipped: bytes
    scripts: str
    """The hashes of the scripts, for the policy."""
    etag: str


async def get_frame(call: Request) -> Response:
    """Return the document of a frame. For `picture`, the query parameter `origin` names the site of the picture."""
    name = call.path_params["name"]
    # Only a frame shows these documents. A browser without this header protects by `frame-ancestors`.
    if call.headers.get("sec-fetch-dest", "iframe") != "iframe":
        return problem(403, "Not a frame", "This address is only for a frame.")
    pictures = "data:"
    if name == "picture":
        pictures = call.query_params.get("origin", "")
        if not _ORIGIN.fullmatch(pictures):
            return problem(
                400,
                "Not an origin",
                "`origin` must be the origin of a site, such as https://example.com.",
            )
    document = await state_of(call).page_threads.run(lambda: _find(name))
    if document is None:
        return problem(404, "Not found", f"{call.scope['path'][:200]} does not exist.")
    headers = {
        "content-security-policy": _POLICY.format(
            scripts=document.scripts, pictures=pictures
        ),
        "x-dns-prefetch-control": "off",
        "cache-control": "no-cache",
        "etag": document.etag,
        "vary": "accept-encoding",
    }
    if call.headers.get("if-none-match") == document.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in call.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(document.zipped, headers=headers, media_type="text/html")
    return Response(document.html, headers=headers, media_type="text/html")


def _find(name: str) -> _Document | None:
    file = FOLDER / f"{name}.html"
    if not _NAME.fullmatch(name) or not file.is_file():
        return None
    return _read(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read(file: Path, _changed: int) -> _Document:
    """Read and compress a document. The time of its last change is a part of the key of the cache."""
    html = file.read_bytes()
    hashes = [
        b64encode(hashlib.sha256(script).digest()).decode()
        for script in _SCRIPT.findall(html)
    ]
    scripts = " ".join(f"'sha256-{found}'" for found in hashes)
    etag = f'"{hashlib.sha256(html).hexdigest()[:32]}"'
    return _Document(html, gzip.compress(html, 6), scripts, etag)
