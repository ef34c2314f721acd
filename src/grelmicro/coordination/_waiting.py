"""How long callers wait."""

from __future__ import annotations

import random

from grelmicro.errors import SettingsValidationError
from grelmicro.types import MAX_SECONDS


def jittered(interval: float, jitter: float) -> float:
    """Return `interval * uniform(1 - jitter, 1 + jitter)`."""
    return interval * random.uniform(1 - jitter, 1 + jitter) if jitter else interval  # noqa: S311


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
