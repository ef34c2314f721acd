"""What workers record: one JSON line per event, in a file per process."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

DIRECTOR = 0
"""The number under which the process that starts and kills the workers records."""


class What(StrEnum):
    """Kinds of events."""

    READY = "ready"
    """The worker's app is open."""
    TOOK = "took"
    """It got the lock (`asked`, `fence`) and read the counter (`value`)."""
    STUCK = "stuck"
    """It hangs with the lock in its hands, as planned."""
    WROTE = "wrote"
    """It has written the counter (`value`), still holding the lock."""
    LEAVES = "leaves"
    """It is about to release the lock."""
    FINISHED = "finished"
    """It has done all its increments."""
    LEADS = "leads"
    """The leader's work began (`asked`: the last confirmed renewal)."""
    LEADING = "leading"
    """The leader's work goes on (`asked`: the last confirmed renewal)."""
    LED = "led"
    """The leader's work ended."""
    RUNS = "runs"
    """The scheduled job began."""
    RAN = "ran"
    """The scheduled job ended."""
    STARTED = "started"
    """The director started the worker."""
    KILLED = "killed"
    """The director killed the worker, which is dead by now."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a worker."""

    at: float
    """Seconds by the system's monotonic clock, which all processes of a machine share."""
    worker: int
    what: What
    asked: float | None = None
    """When the request was made that a lease counts from."""
    fence: int | None = None
    """The fencing token."""
    value: int | None = None
    """The counter."""


class Recorder:
    """Appends events to one file. A line that was written stays, whatever becomes of the process."""

    def __init__(self, directory: Path, process: int) -> None:
        self._process = process
        self._path = directory / f"{process}.jsonl"

    def __call__(
        self,
        what: What,
        *,
        worker: int | None = None,
        asked: float | None = None,
        fence: int | None = None,
        value: int | None = None,
    ) -> Event:
        """Record an event that happens now, to this process's worker unless another one is named."""
        number = self._process if worker is None else worker
        event = Event(time.monotonic(), number, what, asked, fence, value)
        with self._path.open("a") as file:
            file.write(json.dumps({k: v for k, v in asdict(event).items() if v is not None}) + "\n")
        return event


class Journal:
    """Reads what all processes of a directory have recorded, as it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def new(self) -> list[Event]:
        """Return what came since the last call, ordered by time."""
        found: list[Event] = []
        for path in self._directory.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]  # a killed process may leave half a line
            self._read[path] = self._read.get(path, 0) + len(whole)
            found += map(_parsed, whole.splitlines())
        return sorted(found, key=lambda event: event.at)


def _parsed(line: bytes) -> Event:
    fields: dict[str, Any] = json.loads(line)
    return Event(what=What(fields.pop("what")), **fields)
