"""What tasks and elections look like to the runner."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

if TYPE_CHECKING:
    from grelmicro.task._fire import Fire

__all__ = ["Leadership", "Task", "Trigger"]


@runtime_checkable
class Task(Protocol):
    """Something that `Tasks` runs from its opening to its closing."""

    @property
    def name(self) -> str:
        """The name; no other task of the same `Tasks` has it."""
        ...

    async def __call__(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Report `task_status.started()`, then run until cancelled, or until there is nothing left to do."""
        ...


@runtime_checkable
class Leadership(Protocol):
    """What a task needs of a leader election."""

    def guard(self) -> AbstractAsyncContextManager[Any]:
        """Return a context that raises `WouldBlockError` on entry unless this process leads.

        It cancels its block when leadership is lost, and raises or swallows the cancellation then.
        """
        ...


class Trigger(Protocol):
    """When a task fires, and whether this replica may run the fire."""

    @property
    def next_fire_time(self) -> datetime | None:
        """When the next fire is planned (aware, UTC)."""
        ...

    def prepare(self) -> None:
        """Check that what it needs is there, and begin to count.

        Raises:
            OutOfContextError: a backend is missing.
        """
        ...

    async def wait(self) -> None:
        """Wait until a fire is due."""
        ...

    async def claim(self, fire: Fire) -> None:
        """Decide whether this replica runs the fire that is due, as the last step before it does.

        Raises:
            SkipError: it does not.
        """
        ...

    def done(self, fire: Fire) -> None:
        """Plan the next fire after `fire`, which ran or was skipped."""
        ...
