"""The public address of the page, and the paths below it.

A proxy may serve the page below a path, such as `https://example.org/tenax`. The guard then stores `/tenax` in the
`root_path` of the scope, as ASGI describes. The proxy passes the path unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

__all__ = ["PublicAddress", "base_of", "path_of"]

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class PublicAddress(NamedTuple):
    """The parts of `serve.url`."""

    scheme: str
    host: str
    """The `Host` header of a browser that opens the address: the name, and the port unless it is the default."""
    root_path: str
    """The path before the paths of the page, such as `/tenax`. Empty if the page has the name for itself."""

    @classmethod
    def of(cls, url: str) -> PublicAddress:
        """Split an address that `config` has checked."""
        parts = urlsplit(url)
        return cls(parts.scheme, parts.netloc, parts.path)

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}"

    def is_in(self, host: str) -> bool:
        """Return whether a `Host` header names the address."""
        return host.lower() in {self.host, self.host + _DEFAULT_PORTS[self.scheme]}


def base_of(scope: Mapping[str, Any]) -> str:
    """Return the path of the first screen, with a slash at the end."""
    return f"{scope.get('root_path', '')}/"


def path_of(scope: Mapping[str, Any]) -> str:
    """Return the path of a request as the routes name it, without the path before them."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
