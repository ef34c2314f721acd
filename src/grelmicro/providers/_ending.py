"""Ending tasks that run a vendor's client."""

from __future__ import annotations

import asyncio

_ENOUGH = 0.25
"""Seconds after which a task that still runs has not noticed that it was cancelled."""


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended: redis-py may swallow that, by the `wait_for` of Python 3.11.

    What it raised interests nobody any more.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_ENOUGH)
    if not task.cancelled():
        task.exception()
