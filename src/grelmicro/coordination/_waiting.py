"""How a refused caller waits for its next try."""

from __future__ import annotations

import random

import anyio
from anyio import current_time

from grelmicro.errors import SettingsValidationError
from grelmicro.types import MAX_SECONDS


def jittered(interval: float, jitter: float) -> float:
    """Return `interval * uniform(1 - jitter, 1 + jitter)`."""
    return interval * random.uniform(1 - jitter, 1 + jitter) if jitter else interval  # noqa: S311


async def until_next_try(*, interval: float, jitter: float, deadline: float | None) -> bool:
    """Wait until another try may succeed. Returns False when the deadline (loop time) came first."""
    pause = jittered(interval, jitter)
    if deadline is None:
        await anyio.sleep(pause)
        return True
    await anyio.sleep(min(pause, max(0.0, deadline - current_time())))
    return current_time() < deadline


def check_timeout(timeout: float | None) -> float | None:
    """Return `timeout` in seconds, None for no limit; one longer than `MAX_SECONDS` is none.

    Raises:
        SettingsValidationError: it is negative, not a number, or of another type.
    """
    if timeout is None:
        return None
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not number or not timeout >= 0:
        msg = "timeout: must be a number of seconds that is 0 or more, or None to wait for ever"
        raise SettingsValidationError(msg)
    return None if timeout > MAX_SECONDS else timeout
