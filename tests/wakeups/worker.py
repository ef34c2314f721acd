"""Processes that share one lock, forked from one that has made its adapter: orders as JSON, JSON lines back.

`python -m tests.wakeups.worker '{"url": …, "name": …, "processes": 2, "mode": "share", …}'`

- share: `tasks` tasks each take and free the lock for ever, and report the fencing tokens.
- work: `tasks` tasks each take and free the lock `holds` times, once a line has come on standard input.
- wait: reports when it waits for the lock, then when it has it, and frees it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from tests.lock.places import lock_on, new_provider
from tests.wakeups.support import NEVER, waiting

ORDERS: dict[str, Any] = json.loads(sys.argv[1])


def report(event: str, **facts: Any) -> None:
    # One write, since forked workers share the pipe.
    os.write(1, f"{json.dumps({'event': event, 'pid': os.getpid(), **facts})}\n".encode())


# Made at import, as an application does that forks its workers afterwards.
adapter = new_provider(ORDERS["vendor"], ORDERS["url"]).lock()
lock = lock_on(adapter, ORDERS["name"], retry_interval=NEVER)


async def share() -> None:
    while True:
        async with lock as handle:
            await asyncio.sleep(ORDERS.get("hold", 0.001))
            report("held", fence=handle.fencing_token)


async def work() -> None:
    for _ in range(ORDERS["holds"]):
        async with lock:
            await asyncio.sleep(ORDERS.get("hold", 0.002))


async def wait() -> None:
    task = asyncio.create_task(lock.acquire())
    while not (waiting(adapter, ORDERS["name"]) and adapter.wakes):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    report("waiting")
    handle = await task
    report("held", fence=handle.fencing_token)
    await adapter.release(name=ORDERS["name"], token=handle.token)


async def main() -> None:
    async with adapter:
        report("ready")
        if ORDERS["mode"] == "work":
            await adapter.locked(name=ORDERS["name"])
            await asyncio.to_thread(os.read, 0, 1)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ORDERS.get("tasks", 1)):
                tasks.create_task({"share": share, "work": work, "wait": wait}[ORDERS["mode"]]())
        report("done")


if __name__ == "__main__":
    for _ in range(ORDERS.get("processes", 1) - 1):
        if os.fork() == 0:
            break
    asyncio.run(main())
