"""The child process of the practice model: llama.cpp's HTTP server on a free port of this machine.

`python -m tenax.models.practice.serve PARENT` reads a key from standard input. Every request must carry the key. The
process prints the URL or an error on a single line, and exits when standard input is closed or the parent process
changes. The output of the library is discarded.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Final

import msgspec

from tenax.models.practice.practice import CONTEXT, Status, is_whole, model_file

_CHECK_SECONDS: Final = 1.0


def main(parent: int) -> None:
    """Serve until the parent is gone."""
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    key = os.read(0, 256).decode().strip()
    status, _server = _start_server(key)
    os.write(out, msgspec.json.encode(status) + b"\n")
    os.close(out)
    while os.getppid() == parent and not select.select([0], [], [], _CHECK_SECONDS)[0]:
        pass
    # A regular exit of the library takes long, and there is nothing to save.
    os._exit(0)


def _start_server(key: str) -> tuple[Status, object]:
    """Load the model and listen. The server stops when the returned object is garbage."""
    file = model_file()
    if file is None or not is_whole(file):
        return Status(
            error="The file of the practice model is damaged, or not there."
        ), None
    try:
        import xllamacpp  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415  (heavy)
    except ImportError:
        return Status(
            error="The library that runs the practice model cannot be loaded."
        ), None
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    # The threads wait for each other: on busy cores more threads are slower.
    threads = max(1, min(4, (os.cpu_count() or 1) // 2))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.hostname = "127.0.0.1"
    params.port = 0
    params.api_keys = [key]
    params.use_jinja = True
    params.webui = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    return Status(url=server.listening_address), server


if __name__ == "__main__":
    main(int(sys.argv[1]))
