"""`Dockerfile` and `compose.yaml`, as far as they can be checked without Docker: no image is built here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.served import ROOT, SECONDS, Served, free_port

# Made by the stage before, and kept out of the context.
BUILT = "src/tenax/web/page/"


class Step(NamedTuple):
    word: str
    text: str


def steps() -> list[Step]:
    """The instructions of the Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [Step(*line.split(maxsplit=1)) for line in lines if line.strip()]


def texts(word: str) -> list[str]:
    return [step.text for step in steps() if step.word == word]


def variables() -> dict[str, str]:
    """The environment of the image."""
    words = [word for text in texts("ENV") for word in shlex.split(text)]
    return dict(word.split("=", 1) for word in words)


def test_everything_that_is_copied_is_there_and_not_ignored() -> None:
    """Files of the repository; those of another stage are its own matter."""
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    for text in texts("COPY"):
        *sources, _target = text.split()
        if sources[0].startswith("--from="):
            stages = [found.rpartition(" AS ")[2] for found in texts("FROM")]
            assert sources[0].removeprefix("--from=") in stages
            continue
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source.rstrip("/").split("/")[0] in kept, source


def test_every_command_is_one_that_there_is() -> None:
    """Scripts of the page, lock files with hashes, and the command of the package."""
    runs = " && ".join(texts("RUN"))
    scripts = json.loads((ROOT / "ui/package.json").read_text())["scripts"]
    assert set(re.findall(r"npm run (\S+)", runs)) <= scripts.keys()
    for line in re.findall(r"pip install [^&]*", runs):
        files = re.findall(r"-r (\S+)", line)
        assert all((ROOT / file).exists() for file in files)
        assert "--require-hashes" in line or line.strip().endswith("dist/*.whl")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert json.loads(texts("ENTRYPOINT")[0])[0] in project["scripts"]
    built = re.search(r'outDir: "\.\./(.*?)"', (ROOT / "ui/vite.config.ts").read_text())
    assert built is not None
    assert f"--from=page /build/{built[1]}/ {BUILT}" in texts("COPY")


def test_the_image_runs_as_a_user_with_a_folder_of_its_own() -> None:
    """Not as root, and what is worth keeping is in the volume."""
    assert texts("USER") == ["tenax"]
    assert texts("VOLUME") == [variables()["TENAX_HOME"]] == ["/data"]
    assert texts("EXPOSE") == [variables()["TENAX_PORT"]]


@pytest.mark.crash
def test_the_command_of_the_image_serves_and_is_healthy(tmp_path: Path) -> None:
    """With its variables: only a link of the public address is printed, by `tenax link`, and the health check agrees."""
    compose = services()["tenax"]
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    public = compose["environment"]["TENAX_URL"]
    assert public == "${TENAX_URL:-http://127.0.0.1:8629}"
    own = {"TENAX_HOST": variables()["TENAX_HOST"], "TENAX_URL": address}
    entry = json.loads(texts("ENTRYPOINT")[0]) + json.loads(texts("CMD")[0])
    served = Served(tmp_path, *entry[1:], env={**own, "TENAX_PORT": str(port)})
    health = json.loads(texts("HEALTHCHECK")[0].partition("CMD ")[2])
    command = [word.replace("8629", str(port)) for word in health[1:]]

    def is_healthy() -> bool:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode == 0

    assert not is_healthy()
    with subprocess.Popen(
        served.command, env=served.env, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert f"running at http://0.0.0.0:{port}" in process.stderr.readline()
            assert is_healthy()
            link = served.tenax("link").stdout
            assert link.startswith(f"{address}/link#code=")
            served.url = address
            page = served.browser(link.strip())
            assert page.get("/devices")
            page.http.close()
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert set(found["volumes"]) == {"data", "postgres"}
    return dict(found["services"])


def test_the_port_is_published_on_this_machine_only() -> None:
    """The same port as in the image."""
    port = variables()["TENAX_PORT"]
    assert services()["tenax"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert services()["tenax"]["volumes"] == ["data:/data"]


def test_postgresql_comes_only_with_its_profile() -> None:
    """Without a default password, and Tenax waits until it is healthy."""
    database = services()["postgres"]
    assert database["profiles"] == ["postgres"]
    assert database["environment"]["POSTGRES_PASSWORD"] == "${POSTGRES_PASSWORD:-}"
    assert services()["tenax"]["depends_on"]["postgres"] == {
        "condition": "service_healthy",
        "required": False,
    }
    assert "ports" not in database
