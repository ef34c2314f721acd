"""The time by the API server's clock, for fencing tokens that outlive the Lease that counted them."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from grelmicro.coordination._clock import wall_time

_TOLERANCE = 1.5
"""Seconds by which a header's whole seconds, and the way here, let two equal clocks differ."""


class ServerClock:
    """Reads the `Date` of every reply. Its only user needs a clock that is right to a few seconds."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self.known = False
        """Whether a reply has told the time."""

    def note(self, date: str | None) -> None:
        """Take in the `Date` header of a reply that has just come."""
        try:
            server = parsedate_to_datetime(date or "").timestamp() + 0.5
        except ValueError:
            return
        ahead = server - wall_time()
        self._ahead = 0.0 if abs(ahead) <= _TOLERANCE else ahead
        self.known = True

    def epoch(self) -> float:
        """Return UTC epoch seconds by the server's clock."""
        return wall_time() + self._ahead
