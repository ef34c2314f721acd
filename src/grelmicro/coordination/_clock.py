"""The one place where wall time enters."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def wall_time() -> float:
    """Return UTC epoch seconds. Only what is shown to people or compared with a calendar may use it."""
    return time.time()


def utc(epoch: float) -> datetime:
    """Return epoch seconds as an aware datetime in UTC."""
    return datetime.fromtimestamp(epoch, UTC)
