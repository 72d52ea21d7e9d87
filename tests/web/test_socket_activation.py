"""`tenax serve` as a service: the socket of a service manager, states for it, and restarts that refuse nobody."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.served import SECONDS, environment, free_port
from tests.support.systemd import Activated, program, run_with_manager

pytestmark = pytest.mark.crash


def connect(port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.connect()
    return connection


def answer(connection: http.client.HTTPConnection) -> bytes:
    with connection.getresponse() as response:
        assert response.status == 200
        return response.read()


@pytest.mark.parametrize("kind", ["a path", "an abstract name"])
def test_a_service_manager_hears_ready_and_stopping(tmp_path: Path, kind: str) -> None:
    """READY when a page is answered, STOPPING at SIGTERM; no link is printed, because a log keeps the output."""
    name = f"@tenax-test-{os.getpid()}" if kind == "an abstract name" else ""
    with Activated(tmp_path, notify=name) as service:
        page = connect(service.port)
        page.request("GET", "/api/health")
        assert b'"ok":true' in answer(page)
        page.close()
        code, out, err = service.stop()
        assert service.next_state() == "STOPPING=1"
    assert (code, out) == (0, "")
    assert err.startswith(f"Tenax is running at http://127.0.0.1:{service.port}\n")
    assert "code=" not in err


def test_no_child_gets_the_variables_of_the_service_manager(tmp_path: Path) -> None:
    """Neither the server nor its tools could report a state or take the socket."""
    with Activated(tmp_path) as service:
        variables = Path(f"/proc/{service.server()}/environ").read_text()
    assert "TENAX_HOME=" in variables
    assert "LISTEN_" not in variables
    assert "NOTIFY_SOCKET" not in variables


def test_requests_during_a_restart_wait_and_are_answered(tmp_path: Path) -> None:
    """Four clients ask all the time, and others ask while no process runs: no connection is refused or cut."""
    answered = [0] * 4
    failed: list[str] = []
    ended = threading.Event()

    def ask(number: int) -> None:
        while not ended.is_set():
            try:
                page = connect(service.port)
                page.request("GET", "/api/health")
                answer(page)
                page.close()
            except (OSError, http.client.HTTPException) as error:
                failed.append(repr(error))
            answered[number] += 1

    clients = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    with Activated(tmp_path) as service:
        for client in clients:
            client.start()
        try:
            first = service.process.pid
            assert service.stop()[0] == 0
            assert service.next_state() == "STOPPING=1"
            waiting = [connect(service.port) for _ in range(20)]
            for page in waiting:
                page.request("GET", "/api/health")
            before = list(answered)
            service.start()
            assert service.process.pid != first
            for page in waiting:
                assert b'"ok":true' in answer(page)
                page.close()
            while not all(
                now > then + 1 for now, then in zip(answered, before, strict=True)
            ):
                assert not failed
        finally:
            ended.set()
            for client in clients:
                client.join(SECONDS)
    assert failed == []


def test_a_client_that_connected_just_before_the_end_is_answered(
    tmp_path: Path,
) -> None:
    """Its connection was accepted, its request arrives after the server has begun to end."""
    with Activated(tmp_path) as service:
        fresh, idle = connect(service.port), connect(service.port)
        idle.request("GET", "/api/health")
        answer(idle)
        service.process.send_signal(signal.SIGTERM)
        # The server closes idle connections when it ends.
        assert idle.sock.recv(1) == b""
        fresh.request("GET", "/api/health")
        assert b'"ok":true' in answer(fresh)
        fresh.close()
        idle.close()


def test_a_socket_for_another_process_is_not_taken(tmp_path: Path) -> None:
    """LISTEN_PID names somebody else: the address of the settings counts."""
    port = free_port()
    with Activated(tmp_path, LISTEN_PID="1", TENAX_PORT=str(port)) as service:
        page = connect(port)
        page.request("GET", "/api/health")
        answer(page)
        page.close()
        assert service.port != port


@pytest.mark.parametrize("passed", ["two", "a Unix socket", "a socket that does not listen", "no number"])  # fmt: skip
def test_a_socket_that_is_none_is_refused(tmp_path: Path, passed: str) -> None:
    """A sentence and the way on; exit code 1."""
    counts = {"two": "2", "no number": "x"}
    service = Activated(tmp_path, LISTEN_FDS=counts.get(passed, "1"))
    family = socket.AF_UNIX if passed == "a Unix socket" else socket.AF_INET
    with socket.socket(family) as given:
        if family == socket.AF_UNIX:
            given.bind(str(tmp_path / "socket"))
            given.listen()
        service.process = service.popen(given)
        _, said = service.process.communicate(timeout=SECONDS)
        assert service.process.returncode == 1
    service.__exit__(None, None, None)
    assert said == (
        "tenax: systemd did not pass a single listening TCP socket.\n"
        "The socket unit needs one ListenStream=ADDRESS:PORT. To write the units: tenax service install\n"
    )


def test_a_service_beside_a_running_tenax_fails_and_prints_no_link(
    tmp_path: Path,
) -> None:
    """So the service manager tries again until the other one ends."""
    with Activated(tmp_path) as service:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tenax", "serve", "--no-link"],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == f"Tenax is already running at http://127.0.0.1:{service.port}\n"
    )


def test_systemd_socket_activate_starts_it(tmp_path: Path) -> None:
    """The program of systemd listens; the first request starts Tenax, and is answered."""
    port = free_port()
    command = [
        program("systemd-socket-activate"),
        f"--listen=127.0.0.1:{port}",
        *(f"--setenv={name}" for name in ("TENAX_HOME", "PATH", "HOME") if name in os.environ or name == "TENAX_HOME"),
        sys.executable,
        "-P",
        "-m",
        "tenax",
        "serve",
        "--no-link",
    ]  # fmt: skip
    with subprocess.Popen(
        command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "Listening on" in process.stderr.readline()
            page = connect(port)
            page.request("GET", "/api/health")
            assert b'"ok":true' in answer(page)
            page.close()
        finally:
            process.terminate()
            _, said = process.communicate(timeout=SECONDS)
    assert f"Tenax is running at http://127.0.0.1:{port}\n" in said
    assert process.returncode == 0


SCRIPT = """
tenax="{python} -P -m tenax"
$tenax service status && exit 1
$tenax service install
$tenax service status
curl --silent --show-error --fail http://127.0.0.1:$TENAX_PORT/api/health
echo
first=$(systemctl --user show --property=MainPID --value tenax.service)
for number in $(seq 40); do
    curl --silent --show-error --fail --output /dev/null http://127.0.0.1:$TENAX_PORT/api/health || echo REFUSED
done &
systemctl --user restart tenax
wait
test $first != $(systemctl --user show --property=MainPID --value tenax.service)
kill -KILL $(systemctl --user show --property=MainPID --value tenax.service)
until test $(systemctl --user show --property=NRestarts --value tenax.service) = 1; do sleep 0.1; done
until systemctl --user is-active --quiet tenax.service; do sleep 0.1; done
TENAX_HOME=$HOME/other $tenax service install 2>&1 && exit 1
$tenax service remove
$tenax service status && exit 1
ls $HOME/.config/systemd/user | wc -l
"""


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_real_user_manager_installs_restarts_and_removes_it(tmp_path: Path) -> None:
    """A restart refuses no request, a killed service comes back, and nothing is left behind."""
    said = run_with_manager(SCRIPT.format(python=sys.executable), tmp_path)
    assert "tenax.service: active (running), enabled" in said
    assert "tenax.socket: active (running), enabled" in said
    assert '"ok":true' in said
    assert "REFUSED" not in said
    assert "belongs to another Tenax" in said
    assert said.endswith("To install the service: tenax service install\n0\n")
