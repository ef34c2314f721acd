"""Run by test_fork: a lock made before the fork, held by the parent, used by its children.

Prints one JSON line: what each child saw, and what the parent saw afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading

from grelmicro._threads import thread_number
from grelmicro.coordination import Lock, LockNotOwnedError
from grelmicro.coordination.memory import MemoryLockAdapter
from tests.lock.places import SOON, lock_on, new_provider

CHILDREN = 3
SERVER, URL, NAME = sys.argv[1:]


def adapter():
    return MemoryLockAdapter() if SERVER == "memory" else new_provider(SERVER, URL).lock()


lock = lock_on(adapter(), NAME)


async def child() -> dict[str, object]:
    """Look at the parent's lock from a fork, then use it over a connection of the fork's own."""
    seen: dict[str, object] = {"lost": []}
    for operation in (
        lock.extend,
        lock.release,
        lambda: lock.do_thread_extend(thread_number()),
        lambda: lock.do_thread_release(thread_number()),
    ):
        try:
            await operation()
        except LockNotOwnedError:
            seen["lost"].append(True)
    seen["owned"] = await lock.owned()
    seen["identity"] = lock._holders.identity.worker
    if SERVER == "memory":
        mine = lock
        handle = await lock_on(lock.backend, f"{NAME}-child").acquire(timeout=SOON)
    else:
        mine = Lock.from_config(NAME, lock.config, backend=adapter())
        async with mine.backend:
            seen["refused"] = await mine.do_acquire("a-child", duration=1) is None
            handle = await lock_on(mine.backend, f"{NAME}-{os.getpid()}").acquire(timeout=SOON)
    seen["token"] = handle.token
    return seen


def fork() -> dict[str, object]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            seen = asyncio.run(child())
            os.write(writing, json.dumps(seen).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.wait()
    return json.loads(answer)


async def parent() -> dict[str, object]:
    await lock.do_thread_acquire(thread_number())
    handle = lock._holders.get(thread_number()).handle
    seen = {"children": [fork() for _ in range(CHILDREN)]}
    seen["identity"], seen["token"] = lock._holders.identity.worker, handle.token
    await lock.do_thread_extend(thread_number())
    seen["still owned"] = await lock.backend.owned(name=NAME, token=handle.token)
    await lock.do_thread_release(thread_number())
    return seen


async def main() -> None:
    async with lock.backend:
        assert threading.active_count() == 1
        # Not in the loop's own callbacks: a fork inside a running loop would run it twice.
        print(json.dumps(await parent()))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
