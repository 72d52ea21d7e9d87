"""Write the lock files in `requirements/`: `python -m tools.lock`, or `make lock`.

Each file pins every package with the hashes of all files of its release, for every platform and for Python 3.11 and newer.
The files name no registry, so that pip uses whichever one the machine is set up for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from tenax.models.practice.practice import PACKAGES

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = ROOT / "requirements"
PYTHON_MIN: Final = "3.11"
UV: Final = "uv==0.13.7"
BUILD: Final = ("build>=1.2,<2", "editables>=0.5,<1")
"""What `make wheel` and an editable installation need besides the build system of pyproject.toml."""
SYNAPSE: Final = "matrix-synapse==1.163.2"
_PYPROJECT: Final = "pyproject.toml"
RUN_EXTRAS: Final = ("discord", "matrix", "mcp", "secrets", "telegram", "webhook")
"""The extras of `make run`. With them, everything in Settings can be set up without an installation by hand."""


def main() -> int:
    """Resolve anew and write all files. Those that other files stand on come first, so that they agree."""
    pyproject = tomllib.loads((ROOT / _PYPROJECT).read_text(encoding="utf-8"))
    build = pyproject["build-system"]["requires"]
    postgres = pyproject["project"]["optional-dependencies"]["postgres"]
    with tempfile.TemporaryDirectory() as folder:
        uv = _installed(Path(folder))
        _compile(uv, "dev", _PYPROJECT, "--extra", "dev")
        _compile(
            uv,
            "run",
            _PYPROJECT,
            *(word for extra in RUN_EXTRAS for word in ("--extra", extra)),
            "--constraint",
            "requirements/dev.txt",
        )
        _compile(
            uv,
            "docs",
            _PYPROJECT,
            "--extra",
            "docs",
            "--constraint",
            "requirements/dev.txt",
        )
        _compile(
            uv,
            "build",
            "-",
            "--constraint",
            "requirements/dev.txt",
            needs=[*build, *BUILD],
        )
        # The image of the Dockerfile has the driver too.
        _compile(
            uv,
            "postgres",
            "-",
            "--constraint",
            "requirements/dev.txt",
            needs=postgres,
        )
        # The package of the model asks for a library that takes minutes to compile and is never used.
        _compile(uv, "practice", "-", "--no-deps", needs=PACKAGES)
        # A homeserver for the tests, in an environment of its own (tools/synapse.py).
        _compile(uv, "synapse", "-", needs=[SYNAPSE])
    return 0


def _installed(folder: Path) -> Path:
    """Install uv into an environment of its own: pip cannot resolve for other platforms."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV],
        check=True,
    )
    return folder / "bin" / "uv"


def _compile(
    uv: Path,
    name: str,
    source: str,
    *options: str,
    needs: tuple[str, ...] | list[str] = (),
) -> None:
    command = [
        str(uv), "pip", "compile", source, "--output-file", f"requirements/{name}.txt", "--quiet", "--no-config", "--upgrade",
        "--universal", "--python-version", PYTHON_MIN, "--generate-hashes", "--no-header", "--no-annotate",
        "--no-emit-index-url", "--no-emit-find-links", "--native-tls", *options,
    ]  # fmt: skip
    LOCKS.mkdir(exist_ok=True)
    # Files of this machine beside the registry may have other hashes than those that everybody gets.
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in {"UV_FIND_LINKS", "UV_EXTRA_INDEX_URL"}
    }
    subprocess.run(
        command, cwd=ROOT, env=env, input="\n".join(needs).encode(), check=True
    )


if __name__ == "__main__":
    sys.exit(main())
