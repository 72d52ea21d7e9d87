"""Write down anew what model requests look like, in `requests.json` of each golden store.

    python -m tests.golden.refresh

Run it in a commit that rewords prompts or tool descriptions on purpose, and in no other. Look at the diff: only the words that
were changed may differ. The stores, `expected.json` and the requests that were sent when the stores were written stay as they are.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tests.golden import stores
from tests.support.postgres import PostgresServer


def main() -> None:
    with (
        stores.on_the_same_host(),
        PostgresServer() as server,
        tempfile.TemporaryDirectory() as scratch,
    ):
        for engine in stores.ENGINES:
            copies = [
                stores.copy_of(
                    engine,
                    Path(scratch) / engine / str(number),
                    server.create_database(),
                )
                for number in range(2)
            ]
            asyncio.run(stores.refresh(engine, *copies))


if __name__ == "__main__":
    main()
