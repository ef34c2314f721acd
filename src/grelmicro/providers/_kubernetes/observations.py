"""What this process knows of Leases, and since when: expiry is judged by that alone."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grelmicro.providers._kubernetes.names import Place
    from grelmicro.providers._kubernetes.record import Record, State

SIGHTS = 50_000
"""How many held Leases are remembered with the time at which they were first seen."""

RECORDS = 2_000
"""How many Leases are remembered whole, to save reading them again before a write."""


class Observations:
    """First sights of what holders wrote.

    A lease ends its duration, as its holder wrote it, after this process first saw that very write: no
    other machine's clock takes part. What a process never saw before counts as written just now. When more
    Leases are held by others than fit, the longest known is forgotten, and counts as new when seen again.
    """

    def __init__(self, sights: int = SIGHTS, records: int = RECORDS) -> None:
        self._most_sights = sights
        self._most_records = records
        self._sights: OrderedDict[Place, tuple[tuple[object, ...], float]] = OrderedDict()
        self._records: OrderedDict[Place, Record] = OrderedDict()

    def note(self, place: Place, record: Record | None, now: float) -> None:
        """Take in what the server said: at `now`; for a write of our own, when it was sent."""
        self._records.pop(place, None)
        if record is None or not record.state.holder:
            self._sights.pop(place, None)
        elif (seen := self._sights.get(place)) is None or seen[0] != record.signature:
            self._sights.pop(place, None)
            self._sights[place] = (record.signature, now)
            if len(self._sights) > self._most_sights:
                self._sights.popitem(last=False)
        if record is not None:
            self._records[place] = record
            if len(self._records) > self._most_records:
                self._records.popitem(last=False)

    def known(self, place: Place) -> Record | None:
        """Return the Lease as last seen, if that is remembered; it may have changed since."""
        return self._records.get(place)

    def forget(self, place: Place) -> None:
        """Note that the Lease is not as last seen."""
        self._records.pop(place, None)

    def judged(self, place: Place, record: Record | None) -> State | None:
        """Return what a Lease that was noted says, with the time at which it ends here."""
        if record is None:
            return None
        if not record.state.holder:
            return record.state
        seen = self._sights.get(place)
        if seen is None or seen[0] != record.signature:  # crowded out just now: as if it were new
            return replace(record.state, expires_at=math.inf)
        return replace(record.state, expires_at=seen[1] + record.state.duration)
