"""Ending tasks that drive a client of somebody else's."""

from __future__ import annotations

import asyncio
from typing import Any

_ENOUGH = 0.25
"""Seconds after which a task that still runs has not noticed that it was cancelled."""


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended: clients may swallow that, by the `wait_for` of Python 3.11."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_ENOUGH)
