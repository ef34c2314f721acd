"""What a run consists of, and how long its parts take."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

FEWEST_WORKERS, MOST_WORKERS = 2, 16
SHORTEST, LONGEST = 5.0, 20.0
TIME_LIMIT = 29.0
"""Seconds after which a run is given up, whatever it waits for."""

_DEFAULT_SECONDS = 12.0
_INCREMENTS = 32
_FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The timings of a run, in seconds."""

    workers: int
    rounds: int
    """Increments that each worker does."""
    lease: float
    """How long a killed worker's lock and lead outlive it."""
    renew_deadline: float
    retry: float
    """The pause between two requests of a candidate."""
    tick: float
    """The interval of the scheduled job."""
    length: float
    """What the run takes about, once all workers are up."""

    @classmethod
    def make(cls, *, workers: int, seconds: float) -> Self:
        """Fit the parts into `seconds`."""
        scale = min(max(seconds / _DEFAULT_SECONDS, 0.5), 1.0)
        return cls(
            workers=workers,
            rounds=max(_FEWEST_ROUNDS, int(_INCREMENTS * scale) // workers),
            lease=2.0 * scale,
            renew_deadline=1.4 * scale,
            retry=0.4 * scale,
            tick=1.0 * scale,
            length=seconds,
        )

    @property
    def total(self) -> int:
        """What the counter must come to."""
        return self.workers * self.rounds

    @property
    def quiet(self) -> float:
        """How long the schedule is watched at least, with nobody killed."""
        return 3.5 * self.tick


@dataclass(frozen=True, slots=True)
class Orders:
    """What one worker is told, on its standard input: a URL on its command line would show its password."""

    url: str
    directory: str
    """Where it records, and where the counter is."""
    prefix: str
    """What the names on the server begin with."""
    plan: Plan
    use_lock: bool = True
    worker: int = 0
    """Its number."""
    rounds: int = 0
    """How many increments it does."""
    hang_in: int | None = None
    """The increment in which it is to hang with the lock in its hands."""

    def to_line(self) -> str:
        """Write them as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Read them."""
        fields: dict[str, Any] = json.loads(line)
        return cls(plan=Plan(**fields.pop("plan")), **fields)
