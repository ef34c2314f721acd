"""Acquires and releases one lock again and again, until it is killed."""

from __future__ import annotations

import asyncio

import grelmicro.coordination.postgres
import grelmicro.coordination.redis  # noqa: F401 - once, before the forks
from tests.lock.places import lock_on, new_provider


def work(worker: str, server: str, url: str, lease: str) -> None:
    """Use the lock that has the worker's name."""
    asyncio.run(_work(worker, server, url, float(lease)))


async def _work(name: str, server: str, url: str, lease: float) -> None:
    async with new_provider(server, url).lock() as backend:
        lock = lock_on(backend, name, lease_duration=lease)
        while True:
            async with lock:
                await lock.extend()
