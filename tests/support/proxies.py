"""Reverse proxies with TLS in front of `tenax serve`: Caddy and nginx as docs/how-to/behind-a-proxy.md configures them.

A proxy listens on a port of the test. The browser of the test finds the names there, and accepts the certificate.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.needs import Missing
from tests.support.served import ROOT, kept_port

__all__ = ["NAMES", "Certificate", "Site", "caddy", "nginx", "sites"]

SECONDS: Final = 60.0
NAMES: Final = ("tenax.example.org", "example.org")
HOW_TO: Final = ROOT / "docs" / "how-to" / "behind-a-proxy.md"
_BLOCK: Final = re.compile(
    r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL
)
_NGINX: Final = """
daemon off;
master_process off;
pid {folder}/pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/tenax.conf;
}}
"""
_CADDY: Final = """
{{
	admin off
	skip_install_trust
	http_port {http}
	https_port {https}
}}
"""


class Site(NamedTuple):
    """An address of the how-to page: the settings of Tenax and the configurations of the proxies."""

    settings: str
    caddy: str
    nginx: str

    @property
    def url(self) -> str:
        match = re.search(r'^url = "(.*)"$', self.settings, re.MULTILINE)
        assert match is not None
        return match[1]


def sites() -> dict[str, Site]:
    """Return what the how-to page says for a name, and for a path."""
    blocks = _BLOCK.findall(HOW_TO.read_text("utf-8"))
    texts = {
        title: [text for name, text in blocks if name == title]
        for title in ("config.toml", "Caddyfile", "tenax.conf")
    }
    named, below_a_path = [Site(*parts) for parts in zip(*texts.values(), strict=True)]
    return {"name": named, "path": below_a_path}


class Certificate:
    """A self-signed certificate for the names of the how-to page."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAMES[0])])
        now = datetime.now(UTC)
        names = x509.SubjectAlternativeName([x509.DNSName(each) for each in NAMES])
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(names, critical=False)
            .sign(key, hashes.SHA256())
        )
        self.file, self.key = folder / "tls.pem", folder / "tls.key"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.DER,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        )
        self.pin = base64.b64encode(hashlib.sha256(public).digest()).decode()
        """The hash of the public key, by which Chromium accepts the certificate."""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


@contextmanager
def nginx(
    site: Site, folder: Path, certificate: Certificate, port: int, tenax: int
) -> Iterator[None]:
    """Run nginx in front of the Tenax that listens on the port `tenax`."""
    program = _program("nginx", "nginx")
    with kept_port() as plain:
        text = re.sub(r"/etc/ssl/\S+\.pem", str(certificate.file), site.nginx)
        text = re.sub(r"/etc/ssl/\S+\.key", str(certificate.key), text)
        text = text.replace("listen 443 ", f"listen 127.0.0.1:{port} ")
        text = text.replace("listen 80;", f"listen 127.0.0.1:{plain.getsockname()[1]};")
        (folder / "tenax.conf").write_text(_at(text, tenax))
        (folder / "nginx.conf").write_text(_NGINX.format(folder=folder))
        command = [program, "-e", "stderr", "-p", str(folder), "-c", "nginx.conf"]
        with _running(command, folder, port):
            yield


@contextmanager
def caddy(
    site: Site, folder: Path, certificate: Certificate, port: int, tenax: int
) -> Iterator[None]:
    """Run Caddy in front of the Tenax that listens on the port `tenax`."""
    program = _program("caddy", "Caddy")
    with kept_port() as plain:
        own = f" {{\n\ttls {certificate.file} {certificate.key}\n"
        text = site.caddy.replace(" {\n", own, 1)
        ports = _CADDY.format(http=plain.getsockname()[1], https=port)
        (folder / "Caddyfile").write_text(ports + _at(text, tenax))
        with _running([program, "run", "--config", "Caddyfile"], folder, port):
            yield


def _at(text: str, tenax: int) -> str:
    assert "127.0.0.1:8629" in text
    return text.replace("127.0.0.1:8629", f"127.0.0.1:{tenax}")


def _program(name: str, need: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    found = shutil.which(name, path=path)
    if found is None:
        raise Missing(need, f"on Debian and Ubuntu: sudo apt install {name}")
    return found


@contextmanager
def _running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """Run a proxy until the end of the block. Its home is the folder."""
    log = folder / "proxy.log"
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=output
        )
    try:
        _wait_until_it_listens(process, port, log)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_until_it_listens(
    process: subprocess.Popen[bytes], port: int, log: Path
) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=SECONDS).close()
        except ConnectionRefusedError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return
