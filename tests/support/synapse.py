"""A real Matrix homeserver: Synapse on SQLite, on a port of this machine, without limits.

Synapse has packages that Tenax does not need, so it has an environment of its own: `python -m tools.synapse` makes it in
build/synapse. TENAX_SYNAPSE names the Python of another one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tests.support.served import ROOT, kept_port

__all__ = ["SERVER", "Account", "Synapse", "python_of_synapse"]

SERVER: Final = "synapse.test"
SECRET: Final = "only on this machine"
_SECONDS: Final = 60.0

_CONFIG: Final = """
server_name: "{server}"
pid_file: "{home}/synapse.pid"
signing_key_path: "{home}/signing.key"
media_store_path: "{home}/media"
macaroon_secret_key: "only on this machine"
registration_shared_secret: "{secret}"
report_stats: false
suppress_key_server_warning: true
trusted_key_servers: []
url_preview_enabled: false
listeners:
  - port: {port}
    type: http
    bind_addresses: ["127.0.0.1"]
    resources: [{{names: [client]}}]
database: {{name: sqlite3, args: {{database: "{home}/synapse.db"}}}}
rc_message: {{per_second: 1000, burst_count: 1000}}
rc_registration: {{per_second: 1000, burst_count: 1000}}
rc_login:
  address: {{per_second: 1000, burst_count: 1000}}
  account: {{per_second: 1000, burst_count: 1000}}
  failed_attempts: {{per_second: 1000, burst_count: 1000}}
rc_joins: {{local: {{per_second: 1000, burst_count: 1000}}}}
rc_invites: {{per_room: {{per_second: 1000, burst_count: 1000}}, per_user: {{per_second: 1000, burst_count: 1000}}}}
"""


def python_of_synapse() -> Path | None:
    """Return the Python with Synapse, or `None` if there is none."""
    named = os.environ.get("TENAX_SYNAPSE")
    python = Path(named) if named else ROOT / "build" / "synapse" / "bin" / "python"
    return python if python.exists() else None


class Account:
    """A user of the homeserver, signed in on a device."""

    def __init__(self, synapse: Synapse, found: dict[str, Any], password: str) -> None:
        self.synapse = synapse
        self.user: str = found["user_id"]
        self.device: str = found["device_id"]
        self.token: str = found["access_token"]
        self.password = password

    def log_in(self) -> Account:
        """Sign in on another device."""
        content = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": self.user},
            "password": self.password,
        }
        found = self.call("POST", "/login", content)
        return Account(self.synapse, found, self.password)

    def call(self, method: str, path: str, content: object = None) -> dict[str, Any]:
        answer = httpx.request(
            method,
            f"{self.synapse.url}/_matrix/client/v3{path}",
            json=content,
            headers={"authorization": f"Bearer {self.token}"},
            timeout=_SECONDS,
            trust_env=False,
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


class Synapse:
    """A homeserver. `with` starts and stops it."""

    def __init__(self, python: Path, home: Path) -> None:
        self._python = python
        self._home = home
        self._kept = kept_port()
        port = self._kept.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)
        self._config = home / "homeserver.yaml"
        self._config.write_text(
            _CONFIG.format(server=SERVER, secret=SECRET, home=home, port=port)
        )

    def __enter__(self) -> Self:
        self._run("--generate-keys")
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._kept.close()

    def _command(self, *more: str) -> list[str]:
        name = "synapse.app.homeserver"
        return [str(self._python), "-m", name, "-c", str(self._config), *more]

    def _run(self, *more: str) -> None:
        subprocess.run(
            self._command(*more), cwd=self._home, check=True, capture_output=True
        )

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self._home / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                self._command(), cwd=self._home, stdout=output, stderr=output
            )
        deadline = time.monotonic() + _SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.describe()
            assert time.monotonic() < deadline, self.describe()
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """Kill the server: what it has answered is stored."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def describe(self) -> str:
        return (self._home / "output.txt").read_text()[-3000:]

    def register(self, name: str, password: str = "secret words") -> Account:
        """Create a user, and sign in."""
        url = f"{self.url}/_synapse/admin/v1/register"
        nonce = httpx.get(url, trust_env=False).json()["nonce"]
        mac = hmac.new(SECRET.encode(), digestmod=hashlib.sha1)
        mac.update(f"{nonce}\0{name}\0{password}\0notadmin".encode())
        content = {
            "nonce": nonce,
            "username": name,
            "password": password,
            "admin": False,
            "mac": mac.hexdigest(),
        }
        answer = httpx.post(url, json=content, trust_env=False)
        answer.raise_for_status()
        return Account(self, answer.json(), password)
