"""Writes that were sent, have no answer, and may still land."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grelmicro.providers._kubernetes.names import Place
    from grelmicro.providers._kubernetes.record import Record

SETTLED_AFTER = 120.0
"""Seconds after which a request is over on the server: twice an API server's own `--request-timeout`."""


class Unsettled:
    """For each Lease, the resourceVersions on which such writes were based (None: on there being none).

    A replacement names the uid of what it replaces, so that the server does not create a Lease for it.
    """

    def __init__(self) -> None:
        self._bases: dict[Place, dict[str | None, float]] = {}

    def add(self, place: Place, base: str | None, now: float) -> None:
        """Note a write without an answer."""
        for other, bases in list(self._bases.items()):
            if max(bases.values()) + SETTLED_AFTER < now:
                del self._bases[other]
        self._bases.setdefault(place, {})[base] = now

    def may_land(self, place: Place, record: Record | None, now: float) -> bool:
        """Say whether one can still land on the Lease as it is."""
        since = self._bases.get(place, {}).get(record.version if record else None)
        return since is not None and now < since + SETTLED_AFTER

    def clear(self, place: Place) -> None:
        """Note that the Lease has moved on."""
        self._bases.pop(place, None)
