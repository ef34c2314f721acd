"""One caller's request about one Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from grelmicro.providers._kubernetes.record import State


@dataclass(frozen=True, slots=True)
class Moment:
    """When a decision is made."""

    now: float
    """By this process's monotonic clock: what leases are judged by."""
    at: datetime
    """Wall time, for people to read."""
    epoch: float
    """Seconds by the server's clock, for fencing tokens."""


Decide = Callable[["State | None", Moment, Any], "tuple[State | None, Any]"]
"""Takes what a Lease says (None: there is none), the moment, and what an earlier try that may have taken
effect would have returned. Returns what the Lease shall say, the same object to leave it, and the result."""


@dataclass(slots=True, eq=False)
class Operation:
    """A decision to be made, with the future in which its caller waits."""

    decide: Decide
    future: asyncio.Future[Any]
    deadline: float
    """Loop time after which its caller is told that there is no clear answer."""
    writes: bool = True
    """Whether it is likely to write."""
    finish: bool = False
    """Whether it is carried through when its caller has gone, and its refusal outlasts delayed writes."""
    hoped: Any = None
    """Its result in a try that may have taken effect."""

    def wanted(self, now: float) -> bool:
        """Whether it still has a purpose."""
        if self.finish and self.future.cancelled():
            return now < self.deadline
        return not self.future.done()

    def resolve(self, result: Any) -> None:
        """Hand the result to the caller, if there is one."""
        if not self.future.done():
            self.future.set_result(result)
        self.finish = False

    def fail(self, error: BaseException) -> None:
        """Raise in the caller, if there is one."""
        if not self.future.done():
            self.future.set_exception(error)
        self.finish = False
