"""Takes a lock, stands still until somebody writes it a line, and tells what it then finds, once a line each.

Its loop stands still with it, as in a process that was frozen.
"""

from __future__ import annotations

import asyncio
import json
import sys

from grelmicro.coordination import CoordinationError
from tests.lock.places import lock_on, new_provider

SERVER, URL, NAME, LEASE = sys.argv[1:]


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201


async def main() -> None:
    async with new_provider(SERVER, URL).lock() as backend:
        lock = lock_on(backend, NAME, lease_duration=float(LEASE))
        handle = await lock.acquire()
        tell(fence=handle.fencing_token, expires_in=handle.expires_in())
        sys.stdin.readline()
        tell(expires_in=handle.expires_in())
        for operation in (lock.extend, lock.release):
            try:
                await operation()
                tell(error=None)
            except CoordinationError as error:
                tell(error=type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main())
