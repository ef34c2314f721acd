"""The component that runs tasks for as long as the app is open.

Stopping, in this order; each step waits for the one before:

1. No fire starts any more. Waiting runners end; tasks of other kinds are cancelled.
2. Functions that run may end, for `shutdown_timeout` seconds. What still runs then is reported and cancelled.
3. Elections are cancelled, end their work, and hand over.

When the host is cancelled instead of leaving the block, step 2 is cut short, and step 3 still comes last:
elections are shielded from the host's cancellation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, ClassVar, Self

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus
from typing_extensions import override

from grelmicro.task._checks import check_seconds
from grelmicro.task._protocols import Leadership, Task
from grelmicro.task._runner import ScheduledTask
from grelmicro.task.errors import TaskStateError
from grelmicro.task.router import TaskRouter

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Tasks"]

logger = logging.getLogger("grelmicro.task")


class Tasks(TaskRouter):
    """Runs tasks from its opening to its closing; a component of the app, or an async context manager alone.

    Closing drains it: no fire starts any more, functions that run have `shutdown_timeout` seconds to end
    and are cancelled then, and elections hand over last, so that guarded work ends under leadership. A sync
    function cannot be interrupted: closing waits for its thread, also past the timeout, which it then
    reports.

    Web frameworks turn SIGTERM into a shutdown of the app. A program of its own does so in three lines:

    ```python
    async with micro:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            await anext(signals)
    ```
    """

    kind: ClassVar[str] = "task"
    name: ClassVar[str] = "default"
    opens_last: ClassVar[bool] = True
    """For the app: what its functions use is open before they start, and until they have ended."""

    def __init__(
        self,
        *,
        auto_start: bool = True,
        tasks: Iterable[Task] | None = None,
        shutdown_timeout: float = 30.0,
    ) -> None:
        """Collect tasks; nothing runs yet.

        Args:
            auto_start: whether opening starts the tasks; otherwise `start` does.
            tasks: what to begin with, such as leader elections.
            shutdown_timeout: seconds that running functions get when it is closed; 0 cancels them at once.

        Raises:
            TaskDeclarationError: a parameter breaks a rule.
        """
        super().__init__(tasks=tasks)
        self._auto_start = auto_start
        self._shutdown_timeout = check_seconds("shutdown_timeout", shutdown_timeout, zero=True)
        self._group: TaskGroup | None = None
        self._started: list[TaskRouter] = []
        self._workers: list[_Running] = []
        self._elections: list[_Running] = []

    async def __aenter__(self) -> Self:
        if self._group is not None:
            msg = "these tasks are open already"
            raise TaskStateError(msg)
        self._group = await anyio.create_task_group().__aenter__()
        if self._auto_start:
            try:
                await self.start()
            except BaseException:
                await self._close(patience=0)
                raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._close(patience=self._shutdown_timeout)

    async def start(self) -> None:
        """Start all tasks, elections first. Does nothing when they have been started.

        Raises:
            TaskStateError: not open, or a task of an included router runs elsewhere.
            OutOfContextError: a backend that a task needs is missing.
        """
        if self._group is None:
            msg = "open the tasks first: 'async with micro:' or 'async with tasks:'"
            raise TaskStateError(msg)
        if self._started:
            return
        self._started = list(self.routers)
        for router in self._started:
            router._sealed += 1  # noqa: SLF001 - its own base class
        for task in sorted(self.tasks, key=lambda task: not isinstance(task, Leadership)):
            running = _Running(task)
            (self._elections if running.is_election else self._workers).append(running)
            await self._group.start(running.run, name=task.name)

    async def _close(self, *, patience: float) -> None:
        async with AsyncExitStack() as stack:  # unwound from the last line to the first
            stack.callback(self._forget)
            if self._group is not None:
                stack.push_async_callback(self._group.__aexit__, None, None, None)
            stack.callback(self._stop_elections)
            stack.push_async_callback(self._cancel_workers)
            await self._drain(patience)

    async def _drain(self, patience: float) -> None:
        for worker in self._workers:
            worker.stop()
        with anyio.move_on_after(patience):
            await _ended(self._workers)
        late = [worker.task.name for worker in self._workers if not worker.ended.is_set()]
        if late and patience:
            logger.error(
                "Tasks that still ran %g s after the stop are cancelled: %s. One that runs in a thread is "
                "waited for",
                patience,
                ", ".join(late),
            )

    async def _cancel_workers(self) -> None:
        for worker in self._workers:
            worker.scope.cancel()
        with anyio.CancelScope(shield=True):
            await _ended(self._workers)

    def _stop_elections(self) -> None:
        for election in self._elections:
            election.scope.cancel()

    def _forget(self) -> None:
        for router in self._started:
            router._sealed -= 1  # noqa: SLF001 - its own base class
        self._started, self._workers, self._elections, self._group = [], [], [], None


class _Running:
    """A task that was started."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_election = isinstance(task, Leadership)
        self.scope = anyio.CancelScope(shield=self.is_election)
        self.ended = anyio.Event()

    def stop(self) -> None:
        """Ask it to end; a scheduled function that runs may do so by itself."""
        if isinstance(self.task, ScheduledTask):
            self.task.stop()
        else:
            self.scope.cancel()

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Run it to its end. An error before it has started is the caller's; a later one is logged."""
        status = _Status(task_status)
        try:
            with self.scope:
                await self.task(task_status=status)
            if not status.is_started:
                status.started()
        except Exception:
            if not status.is_started:
                raise
            logger.exception("Task %r ended with an error and does not run any more", self.task.name)
        finally:
            self.ended.set()


class _Status(TaskStatus[None]):
    def __init__(self, status: TaskStatus[None]) -> None:
        self._status = status
        self.is_started = False

    @override
    def started(self, value: None = None) -> None:
        self.is_started = True
        self._status.started()


async def _ended(running: Iterable[_Running]) -> None:
    for task in running:
        await task.ended.wait()
