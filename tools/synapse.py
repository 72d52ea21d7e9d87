"""Install Synapse, a Matrix homeserver for the tests, into build/synapse: `python -m tools.synapse`.

Synapse needs packages that Tenax does not need, so it gets an environment of its own. requirements/synapse.txt names every
package with its hashes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "synapse"
LOCK: Final = ROOT / "requirements" / "synapse.txt"
_MARK: Final = FOLDER / "installed.txt"


def main() -> int:
    """Install Synapse unless the version of the lock file is there."""
    wanted = LOCK.read_text(encoding="utf-8")
    if _MARK.exists() and _MARK.read_text(encoding="utf-8") == wanted:
        return 0
    subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
    pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    options = ["--disable-pip-version-check", "--require-hashes", "-r", str(LOCK)]
    subprocess.run([*pip, *options], check=True)
    _MARK.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
