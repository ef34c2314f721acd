"""Run by test_programs: connects, says so, waits for SIGUSR1, and acquires."""

from __future__ import annotations

import asyncio
import signal
import sys

from tests.lock.places import lock_on, new_provider, take_and_free

SERVER, URL, NAME = sys.argv[1:]


async def main() -> None:
    go = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go.set)
    async with new_provider(SERVER, URL).lock() as backend:
        await take_and_free(backend, NAME)
        print("ready", flush=True)  # noqa: T201
        await go.wait()
        await lock_on(backend, NAME).acquire()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
