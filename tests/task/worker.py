"""A replica in a process of its own, which prints when its job runs.

`python -m tests.task.worker URL NAME SECONDS`
"""

from __future__ import annotations

import signal
import sys
import time

import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, TaskLock
from grelmicro.task import Tasks


def provider_for(url, **settings):
    if url.startswith("redis"):
        from grelmicro.providers.redis import RedisProvider

        return RedisProvider(url, **settings)
    from grelmicro.providers.postgres import PostgresProvider

    return PostgresProvider(url, **settings)


async def main(url, name, seconds):
    tasks = Tasks()

    @tasks.interval(seconds=seconds, name=name, lock=TaskLock())
    async def job():
        print(time.time(), flush=True)  # noqa: T201 - what it is for
        await anyio.sleep(seconds / 10)

    async with Grelmicro(uses=[Coordination(provider_for(url)), tasks]):
        print("ready", flush=True)  # noqa: T201 - as above
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            await anext(signals)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]))
