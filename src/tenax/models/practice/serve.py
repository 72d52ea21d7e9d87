"""A program: the practice model behind llama.cpp's own HTTP server, on a free port of this machine.

`python -m tenax.models.practice.serve PARENT`, with a key on its standard input, which every request has to carry. It
says where it listens, or why it cannot, on one line; then it waits until its standard input ends or its parent is
another one, and goes at once. Whatever its library prints goes nowhere.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Final

import msgspec

from tenax.models.practice.practice import CONTEXT, Told, is_whole, model_file

_LOOK_SECONDS: Final = 1.0


def main(parent: int) -> None:
    """Serve until the parent is gone."""
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    key = os.read(0, 256).decode().strip()
    told, _server = _start(key)
    os.write(out, msgspec.json.encode(told) + b"\n")
    os.close(out)
    while os.getppid() == parent and not select.select([0], [], [], _LOOK_SECONDS)[0]:
        pass
    # the library takes its time to end in good order, and has nothing to save
    os._exit(0)


def _start(key: str) -> tuple[Told, object]:
    """Load the model and listen. The server lives as long as it is held."""
    file = model_file()
    if file is None or not is_whole(file):
        return Told(
            error="The file of the practice model is damaged, or not there."
        ), None
    try:
        import xllamacpp  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415  (heavy)
    except ImportError:
        return Told(
            error="The library that runs the practice model cannot be loaded."
        ), None
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    # Its threads wait for each other: on cores that others use too, more of them are slower.
    threads = max(1, min(4, (os.cpu_count() or 1) // 2))
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.hostname = "127.0.0.1"
    params.port = 0
    params.api_keys = [key]
    params.use_jinja = True
    params.webui = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    return Told(url=server.listening_address), server


if __name__ == "__main__":
    main(int(sys.argv[1]))
