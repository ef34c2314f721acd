"""One runner for every kind of schedule: wait, pass the guards, run the function, note what came of it.

States of a runner:

idle -> waiting -> entering -> running -> leaving -> waiting ... -> idle

- waiting, entering: `stop` or a cancellation ends the runner; guards that had been entered are left again.
- running: the fire is committed. `stop` lets it end and ends the runner after it; `abort`, lost leadership or
  a cancellation of the runner cancels the function.
- leaving: the guards are left in reverse order, and each bounds its own exit. A problem there is reported; it
  neither ends the runner nor hides what the function raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus

from grelmicro.task._fire import Fire
from grelmicro.task._function import TaskFunction
from grelmicro.task._guards import Guard
from grelmicro.task._info import FireInfo, FireLedger, Reason
from grelmicro.task._protocols import Trigger
from grelmicro.task.errors import TaskStateError

__all__ = ["ScheduledTask"]


class ScheduledTask:
    """A function and when it runs. It never overlaps itself in this process."""

    def __init__(
        self,
        name: str,
        function: Callable[[], Any],
        trigger: Trigger,
        guards: Sequence[Guard],
        ledger: FireLedger,
    ) -> None:
        self._name = name
        self._function = TaskFunction(function)
        self._trigger = trigger
        self._guards = guards
        self._ledger = ledger
        self._scope: anyio.CancelScope | None = None
        self._fire: Fire | None = None
        self._stopping = False

    @property
    def name(self) -> str:
        """The name that replicas agree on."""
        return self._name

    @property
    def next_fire_time(self) -> datetime | None:
        """When the next fire is planned (aware, UTC); None before the task was started."""
        return self._trigger.next_fire_time

    @property
    def last_fire(self) -> FireInfo | None:
        """The last fire, run or skipped; None before the first."""
        return self._ledger.last

    @property
    def counts(self) -> FireLedger:
        """How many fires ended in which way, and for which reasons."""
        return self._ledger

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    async def __call__(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Run until `stop`, or until cancelled. Nothing that the function raises ends it.

        Raises:
            OutOfContextError: a backend that the task needs is missing.
            TaskStateError: it runs already.
        """
        if self._scope is not None:
            msg = f"task {self._name!r} runs already"
            raise TaskStateError(msg)
        self._stopping = False
        self._trigger.prepare()
        try:
            with anyio.CancelScope() as self._scope:
                task_status.started()
                while not self._stopping:
                    await self._trigger.wait()
                    await self._fire_once()
        finally:
            self._scope = None

    def stop(self) -> None:
        """Start no fire from now on. One whose function runs may end by itself."""
        self._stopping = True
        if self._scope is not None and (self._fire is None or not self._fire.committed):
            self._scope.cancel()

    def abort(self) -> None:
        """Stop, and cancel the function if it runs."""
        self._stopping = True
        if self._scope is not None:
            self._scope.cancel()

    async def _fire_once(self) -> None:
        fire = self._fire = Fire(self._name)
        problem: BaseException | None = None
        try:
            await self._pass_and_run(fire)
        except Exception as error:  # noqa: BLE001 - whatever it is, the task lives on
            problem = error
        except BaseException as error:
            problem = error
            raise
        finally:
            self._fire = None
            self._ledger.record(fire.end(problem))
            self._trigger.done(fire)

    async def _pass_and_run(self, fire: Fire) -> None:
        async with AsyncExitStack() as stack:
            for guard in self._guards:
                await fire.enter(guard, stack)
            if self._stopping:
                raise fire.skip(Reason.STOPPED, "the tasks are being stopped")
            fire.committed = True  # a claim that was sent must be followed by the run
            await self._trigger.claim(fire)
            await fire.run(self._function)
