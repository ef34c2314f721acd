"""What went wrong with a campaign's requests, for the log and for health checks."""

from __future__ import annotations

import logging
import math

from grelmicro.coordination.errors import LeaderElectionBackendError

logger = logging.getLogger("grelmicro.coordination")


class Failures:
    """Counts failures in a row, and logs one per `error_interval`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._logged_at = -math.inf
        self._complained = False
        self.last: LeaderElectionBackendError | None = None
        """The latest failure, cause attached; None once a request was answered."""

    def add(self, error: Exception, *, token: str, now: float, error_interval: float) -> None:
        """Note a failed request."""
        self._count += 1
        text = f"Election {self._name!r}: cannot ask for the lease: {describe(error, token)}"
        self.last = LeaderElectionBackendError(text)
        self.last.__cause__ = error
        if now >= self._logged_at + error_interval:
            self._logged_at = now
            self._complained = True
            logger.error("%s (failure %d in a row; trying again).", text, self._count)

    def end(self) -> None:
        """Note a request that was answered."""
        if self._complained:
            logger.info("Election %r: the backend answers again after %d failures.", self._name, self._count)
        self._count, self._complained, self.last = 0, False, None


def describe(error: Exception, token: str) -> str:
    """Return the error's type and text, without the token, which a vendor may have repeated there."""
    text = str(error).replace(token, "<token>")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
