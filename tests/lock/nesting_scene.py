"""Run by test_programs with -O: a holder that asks again, and children that wait."""

from __future__ import annotations

import asyncio
import json

import anyio

from grelmicro.coordination.memory import MemoryLockAdapter
from tests.lock.places import lock_on


async def error_of(operation):
    try:
        await operation()
    except Exception as error:
        return type(error).__name__
    return "none"


async def main():
    backend = MemoryLockAdapter()
    lock = lock_on(backend, "x")
    order = []

    async def helper():
        async with lock:
            pass

    async def child():
        async with lock:
            order.append("child")

    async with anyio.create_task_group() as tasks, lock:
        seen = {
            "assertions": __debug__,
            "task": [await error_of(one) for one in (lock.acquire, lock.acquire_nowait, lock.__aenter__)],
            "helper": await error_of(helper),
        }
        tasks.start_soon(child)
        tasks.start_soon(child)
        await anyio.sleep(0.1)
        order.append("parent")

    def thread():
        found = []
        with lock.from_thread as _:
            for operation in (
                lock.from_thread.acquire,
                lock.from_thread.acquire_nowait,
                lock.from_thread.__enter__,
            ):
                try:
                    operation()
                except Exception as error:
                    found.append(type(error).__name__)
        return found

    seen["thread"] = await anyio.to_thread.run_sync(thread)
    seen["order"] = order
    seen["free"] = not await lock.locked()
    print(json.dumps(seen))  # noqa: T201


asyncio.run(main())
