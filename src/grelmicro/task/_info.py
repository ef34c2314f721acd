"""What is known about the fires of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

__all__ = ["FireInfo", "FireLedger", "Outcome", "Reason"]


class Outcome(StrEnum):
    """How a fire ended."""

    SUCCESS = "success"
    ERROR = "error"
    SKIPPED = "skipped"


class Reason(StrEnum):
    """Why a fire was skipped, or what went wrong with one that ran."""

    BUSY = "busy"
    """Skipped: another replica holds the lock."""
    CLAIMED = "claimed"
    """Skipped: another replica has run this cron fire."""
    NOT_LEADER = "not_leader"
    """Skipped: this replica does not lead."""
    BACKEND_ERROR = "backend_error"
    """Skipped: the backend could not say whether this replica may run it."""
    MISFIRE = "misfire"
    """Skipped: later than `misfire_grace_seconds`."""
    SUPERSEDED = "superseded"
    """Skipped: missed, and so was a later one, which runs in its place."""
    STOPPED = "stopped"
    """Skipped, or cancelled: the tasks were being stopped."""
    BODY_ERROR = "body_error"
    """Error: the function raised."""
    LEADERSHIP_LOST = "leadership_lost"
    """Error: the function was cancelled when this replica ceased to lead."""
    LEASE_LOST = "lease_lost"
    """Error: the lock's lease ended while the function ran, so another replica may have run it as well."""
    RELEASE_ERROR = "release_error"
    """The function succeeded, then giving the lock back failed; it stays held until its lease ends."""


@dataclass(frozen=True, slots=True)
class FireInfo:
    """One fire of a task."""

    started_at: datetime
    """When it was tried (aware, UTC)."""
    outcome: Outcome
    """How it ended."""
    duration: float
    """Seconds that the function ran; 0 when it was skipped."""
    reason: Reason | None = None
    """Why it was skipped, or what went wrong; None when all was well."""


class FireLedger:
    """The last fire of a task, and how many ended in which way."""

    def __init__(self) -> None:
        self.last: FireInfo | None = None
        self._outcomes: Counter[Outcome] = Counter()
        self._reasons: Counter[Reason] = Counter()

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """Fires by outcome."""
        return MappingProxyType(self._outcomes)

    @property
    def reasons(self) -> Mapping[Reason, int]:
        """Fires by reason."""
        return MappingProxyType(self._reasons)

    def record(self, fire: FireInfo) -> None:
        """Count a fire and keep it as the last one."""
        self.last = fire
        self.count(fire.outcome, fire.reason)

    def count(self, outcome: Outcome, reason: Reason | None, number: int = 1) -> None:
        """Count fires without keeping them."""
        self._outcomes[outcome] += number
        if reason is not None:
            self._reasons[reason] += number
