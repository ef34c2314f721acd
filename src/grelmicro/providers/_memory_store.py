"""What a memory provider keeps: leases and fires of this process, on a clock that outlives event loops."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

from grelmicro._threads import running_loop, runs_here
from grelmicro.coordination._clock import wall_time
from grelmicro.coordination._holders import current_clock
from grelmicro.coordination._identity import fork_count
from grelmicro.coordination._lease import next_fence
from grelmicro.providers._memory_turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from grelmicro.coordination._lease import ElectionLease, Lease

T = TypeVar("T")

_log = logging.getLogger("grelmicro.memory")

_SWEEP_EVERY = 16
_SWEEP = 32  # more than one look per store: what has ended goes faster than it comes


class Expiring(Generic[T]):
    """Values by name, each until its time; every few stores drop some of those that are over.

    It holds at most a small multiple of what was live at once, without a timer and without a long pause.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[T, float]] = {}
        self._puts = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> T | None:
        """Return the value, which may be over its time, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry[0]

    def put(self, name: str, value: T, until: float, now: float) -> None:
        """Store a value that may be dropped from `until` on."""
        self._entries[name] = value, until
        self._puts += 1
        if self._puts % _SWEEP_EVERY == 0:
            for oldest in list(islice(self._entries, _SWEEP)):
                entry = self._entries.pop(oldest)
                if now < entry[1]:
                    self._entries[oldest] = entry

    def pop(self, name: str) -> None:
        """Forget the value, if there is one."""
        self._entries.pop(name, None)


class MemoryStore:
    """The state of one memory provider. It coordinates one process, and nothing else."""

    def __init__(self) -> None:
        self.locks: Expiring[Lease] = Expiring()
        self.elections: Expiring[ElectionLease] = Expiring()
        self.fires: dict[str, float] = {}
        self.turns = Turns()
        self.vacancies = Turns()
        self.guard = threading.Lock()
        """Held around each decision, since two threads may run a loop each."""
        self._fence = 0
        self._made_in = fork_count()
        self._checked_in: int | None = None
        self._loop: Callable[[], Any] = object
        self._thread = 0
        self._clock: Callable[[], float] = time.monotonic
        self._time = self._offset = 0.0
        self._real_time = time.monotonic()

    def now(self) -> float:
        """Return seconds: the running loop's clock, and real time from one loop to the next."""
        real_time = time.monotonic()
        if not runs_here(self._loop(), self._thread) and (loop := running_loop()) is not self._loop():
            self._loop, self._thread, self._clock = ref(loop), get_ident(), current_clock()
            self._offset = self._time + max(0.0, real_time - self._real_time) - self._clock()
        self._real_time = real_time
        self._time = max(self._time, self._clock() + self._offset)
        return self._time

    def mint(self) -> int:
        """Return a fencing token larger than every earlier one."""
        self._fence = next_fence(self._fence, wall_time())
        return self._fence

    def warn_of_processes(self) -> None:
        """Log, once a process, that there seem to be others, which the state cannot be shared with."""
        here = fork_count()
        if self._checked_in == here:
            return
        self._checked_in = here
        if self._made_in != here:
            problem = "was made before this process was forked off"
        elif multiprocessing.parent_process() is not None:
            problem = "is used in a process started by multiprocessing, perhaps one of several workers"
        else:
            return
        _log.warning(
            "A memory backend %s. It lives in one process: its locks, elections and schedules exclude nobody "
            "in another. Use Redis or PostgreSQL where several processes share work.",
            problem,
        )
