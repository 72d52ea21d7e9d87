"""What systemd passes to a service: the listening socket (sd_listen_fds), and an address for its state (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

from tenax.errors import CannotOpen

__all__ = ["Manager"]

_FIRST_DESCRIPTOR: Final = 3
_LISTEN: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
_NOTIFY: Final = "NOTIFY_SOCKET"
_NOTIFY_SECONDS: Final = 5.0


class Manager:
    """The service manager that started the process, if any."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the variables out of the environment, so that tools and other children do not get them."""
        pid, count, _ = (environ.pop(name, "") for name in _LISTEN)
        self._count = count if pid == str(os.getpid()) else ""
        self._address = environ.pop(_NOTIFY, "")

    def listening_socket(self) -> socket.socket | None:
        """Return the listening socket of the service, or `None`. Raises `CannotOpen` for anything but a single one."""
        if self._count in {"", "0"}:
            return None
        try:
            passed = socket.socket(fileno=_FIRST_DESCRIPTOR)
            listens = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError:
            # The descriptor is closed, or no socket.
            listens = 0
        families = {socket.AF_INET, socket.AF_INET6}
        if self._count != "1" or not listens or passed.family not in families:
            raise CannotOpen(
                "systemd did not pass a single listening TCP socket.",
                hint="The socket unit needs one ListenStream=ADDRESS:PORT. To write the units: tenax service install",
            )
        passed.set_inheritable(False)
        return passed

    def notify(self, *states: str) -> None:
        """Report states such as READY=1. An address that begins with @ is in the abstract namespace."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = f"\0{address[1:]}"
        # A service manager that went away needs no state.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel,
        ):
            channel.settimeout(_NOTIFY_SECONDS)
            channel.sendto("\n".join(states).encode(), address)
