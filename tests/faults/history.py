"""Judges what the holders of one lock name wrote down: was it ever held twice, and were its fences in order?

Times are seconds of one clock that all processes on a machine share (`time.monotonic`). A worker notes a
grant after it has got it, and everything else before it does it, so what it claims never lasts longer than
the truth: killed or frozen at any point, it has still told nothing false. A lease counts as live from the
note of its grant until the release is sent, or until it ends by the handle's own word, whichever comes first.
What a process does after that is the affair of fencing tokens: its writes carry one, and the resource takes
no write with a smaller one than it has seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@dataclass
class Grant:
    """One acquisition, as its holder saw it."""

    worker: str
    name: str
    token: str
    fence: int
    asked_at: float
    """When the holder began to ask."""
    live_from: float
    live_until: float
    writes: list[float] = field(default_factory=list)
    """When the holder wrote to the protected resource."""

    @property
    def was_live(self) -> bool:
        """Whether the holder could act on it at all: it may have stood still until it was over."""
        return self.live_from < self.live_until


def read(path: Path) -> list[dict[str, Any]]:
    """Read the notes of one worker, which may have been killed in the middle of the last line."""
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def grants_of(worker: str, notes: Iterable[dict[str, Any]]) -> list[Grant]:
    """Return the grants that a worker's notes tell of."""
    grants: dict[str, Grant] = {}
    for note in notes:
        match note["event"]:
            case "granted":
                grants[note["token"]] = Grant(
                    worker,
                    note["name"],
                    note["token"],
                    note["fence"],
                    note["asked"],
                    note["at"],
                    note["ends"],
                )
            case "extended":
                grant = grants[note["token"]]
                if note["fence"] != grant.fence:
                    grant.fence = -1  # never in order
                if note["asked"] < grant.live_until:
                    grant.live_until = note["ends"]
            case "write":
                grants[note["token"]].writes.append(note["at"])
            case "releasing":
                grant = grants[note["token"]]
                grant.live_until = min(grant.live_until, note["at"])
    return list(grants.values())


def faults(grants: Iterable[Grant]) -> list[str]:
    """Return what must not have happened, in words; nothing if all was well."""
    found = []
    by_name: dict[str, list[Grant]] = {}
    for grant in grants:
        by_name.setdefault(grant.name, []).append(grant)
    for name, one in by_name.items():
        found += [f"{name}: {fault}" for fault in (*_overlaps(one), *_disorder(one), *_stale_writes(one))]
    return found


def _overlaps(grants: list[Grant]) -> Iterable[str]:
    live = sorted((grant for grant in grants if grant.was_live), key=lambda grant: grant.live_from)
    latest = None
    for grant in live:
        if latest is not None and grant.live_from < latest.live_until:
            overlap = min(latest.live_until, grant.live_until) - grant.live_from
            yield f"{latest.worker} and {grant.worker} both held it, for {overlap:.6f} s"
        if latest is None or grant.live_until > latest.live_until:
            latest = grant


def _disorder(grants: list[Grant]) -> Iterable[str]:
    """Each was granted between `asked_at` and `live_from`: find what certainly came in another order."""
    by_fence = sorted(grants, key=lambda grant: grant.fence)
    begun, first = float("-inf"), None
    for grant in by_fence:
        if grant.fence <= 0:
            yield f"{grant.worker} was given another fence by extending"
        if first is not None and grant.fence == first.fence:
            yield f"{first.worker} and {grant.worker} were given the same fence {grant.fence}"
        if grant.live_from < begun:
            yield f"{grant.worker} was given the fence {grant.fence} before a smaller one was asked for"
        begun, first = max(begun, grant.asked_at), grant


def _stale_writes(grants: list[Grant]) -> Iterable[str]:
    """Play the resource: no write of a holder that thought itself live may be refused."""
    writes = sorted((at, grant.fence, grant) for grant in grants for at in grant.writes)
    highest = 0
    for at, fence, grant in writes:
        if fence < highest and grant.live_from <= at < grant.live_until:
            yield f"{grant.worker} wrote with the fence {fence} after {highest} had been seen"
        highest = max(highest, fence)
