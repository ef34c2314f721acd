"""One of several processes that share a few locks, and write down what they see of them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path

import anyio

import grelmicro.coordination.postgres
import grelmicro.coordination.redis  # noqa: F401 - once, before the forks
from grelmicro.coordination import LockBackendError, LockNotOwnedError, LockTimeoutError
from grelmicro.coordination.memory import MemoryLockAdapter
from tests.lock.places import lock_on, new_provider


class Notebook:
    """Appends lines that are whole or, when the process is killed, torn at the end of the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **facts: object) -> None:
        line = json.dumps({"event": event, "at": time.monotonic()} | facts)
        os.write(self._file, line.encode() + b"\n")


def work(worker: str, server: str, url: str, prefix: str, names: str, lease: str, seed: str, directory: str):
    """Run until SIGTERM."""
    notebook = Notebook(Path(directory) / worker)
    chance = random.Random(f"{seed}-{worker}")
    asyncio.run(
        _work(notebook, chance, server, url, [f"{prefix}-{n}" for n in range(int(names))], float(lease))
    )
    notebook.note("end")


async def _work(notebook, chance, server, url, names, lease) -> None:
    stop = anyio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    notebook.note("start")
    # Memory is here to show that the judge finds out locks that exclude nobody.
    adapter = MemoryLockAdapter() if server == "memory" else new_provider(server, url).lock()
    async with adapter as backend, anyio.create_task_group() as tasks:
        locks = [lock_on(backend, name, lease_duration=lease, retry_interval=0.05) for name in names]
        # One task looks for any lock; one stays with one, as does the one that uses it from a thread.
        tasks.start_soon(_use, notebook, chance, locks, stop)
        tasks.start_soon(_use, notebook, chance, [chance.choice(locks)], stop)
        tasks.start_soon(_use_from_thread, notebook, chance, chance.choice(locks), stop)


async def _use(notebook, chance, locks, stop) -> None:
    while not stop.is_set():
        lock = chance.choice(locks)
        try:
            handle = await lock.acquire(timeout=chance.uniform(0.3, 1))
        except (LockTimeoutError, LockBackendError) as error:
            notebook.note("refused", name=lock.name, error=repr(error))
            continue
        _granted(notebook, handle, lock)
        try:
            await anyio.sleep(chance.uniform(0, 0.02))
            notebook.note("write", token=handle.token)
            if chance.random() < 0.3:
                await lock.extend()
                _extended(notebook, handle, lock)
                await anyio.sleep(chance.uniform(0, 0.02))
                notebook.note("write", token=handle.token)
            notebook.note("releasing", token=handle.token)
            await lock.release()
            notebook.note("released", token=handle.token)
        except (LockNotOwnedError, LockBackendError) as error:
            notebook.note("lost", token=handle.token, error=repr(error))
        await anyio.sleep(chance.uniform(0, 0.01))


async def _use_from_thread(notebook, chance, lock, stop) -> None:
    def once() -> None:
        try:
            handle = lock.from_thread.acquire(timeout=chance.uniform(0.3, 1))
        except (LockTimeoutError, LockBackendError) as error:
            notebook.note("refused", name=lock.name, error=repr(error))
            return
        _granted(notebook, handle, lock)
        try:
            time.sleep(chance.uniform(0, 0.02))
            notebook.note("write", token=handle.token)
            notebook.note("releasing", token=handle.token)
            lock.from_thread.release()
            notebook.note("released", token=handle.token)
        except (LockNotOwnedError, LockBackendError) as error:
            notebook.note("lost", token=handle.token, error=repr(error))

    while not stop.is_set():
        await anyio.to_thread.run_sync(once)
        await anyio.sleep(chance.uniform(0, 0.02))


def _granted(notebook, handle, lock) -> None:
    ends = handle._lease.deadline
    notebook.note(
        "granted",
        name=handle.name,
        token=handle.token,
        fence=handle.fencing_token,
        asked=ends - lock.config.lease_duration,
        ends=ends,
    )


def _extended(notebook, handle, lock) -> None:
    ends = handle._lease.deadline
    asked = ends - lock.config.lease_duration
    notebook.note("extended", token=handle.token, fence=handle.fencing_token, asked=asked, ends=ends)
