"""Declaring tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, TypeVar, cast

from grelmicro.coordination._interval_lock import IntervalLock
from grelmicro.coordination.tasklock import TaskLock
from grelmicro.errors import SettingsValidationError
from grelmicro.task._checks import check_seconds
from grelmicro.task._cron import CronTrigger, check_backend
from grelmicro.task._cron_expression import CronExpression
from grelmicro.task._function import check_function, task_name
from grelmicro.task._guards import Guard, leader_guard, lock_guard, resource_guard, task_lock_guard
from grelmicro.task._info import FireLedger
from grelmicro.task._interval import IntervalTrigger
from grelmicro.task._protocols import Leadership, Task, Trigger
from grelmicro.task._runner import ScheduledTask
from grelmicro.task.errors import TaskDeclarationError, TaskStateError

if TYPE_CHECKING:
    from grelmicro.coordination.abc import ScheduleBackend

__all__ = ["TaskRouter"]

FunctionT = TypeVar("FunctionT", bound=Callable[[], Any])


class TaskRouter:
    """A collection of tasks that `Tasks` includes.

    A decorated function stays as it is. Its task is named `module:function` unless `name=` is given; replicas
    agree on a task by that name, so a lambda, a nested function, a method or a partial needs one. Sync
    functions run in a worker thread.
    """

    def __init__(self, *, tasks: Iterable[Task] | None = None) -> None:
        """Begin with `tasks`, such as leader elections."""
        self._own: list[Task] = []
        self._routers: list[TaskRouter] = []
        self._sealed = 0
        for task in tasks or ():
            self.add_task(task)

    @property
    def tasks(self) -> Sequence[Task]:
        """All tasks, those of included routers too."""
        return [*self._own, *(task for router in self._routers for task in router.tasks)]

    def add_task(self, task: Task) -> None:
        """Add something that is a task already, such as a leader election.

        Raises:
            TaskDeclarationError: it is no task, or another one has its name.
            TaskStateError: the tasks run.
        """
        given = cast("object", task)
        if isinstance(given, type) or not isinstance(given, Task):
            msg = f"task: must have a name and be callable, which a {type(task).__name__} is not"
            raise TaskDeclarationError(msg)
        self._refuse([task])
        self._own.append(task)

    def include_router(self, router: TaskRouter) -> None:
        """Take over all tasks of a router, including those that are added to it later.

        Raises:
            TaskDeclarationError: a task of it has the name of another one here.
            TaskStateError: the tasks run.
        """
        given = cast("object", router)
        if not isinstance(given, TaskRouter) or self in given.routers:
            msg = "router: must be a TaskRouter that does not contain this one"
            raise TaskDeclarationError(msg)
        self._refuse(router.tasks)
        self._routers.append(router)

    @property
    def routers(self) -> Sequence[TaskRouter]:
        """This router, and all that it includes."""
        return [self, *(inner for router in self._routers for inner in router.routers)]

    def interval(
        self,
        *,
        seconds: float,
        name: str | None = None,
        lock: TaskLock | AbstractAsyncContextManager[Any] | None = None,
        leader: Leadership | None = None,
        sync: AbstractAsyncContextManager[Any] | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Run the decorated function now and every `seconds` seconds, counted from start to start.

        With `lock=TaskLock()` it runs at most once per interval over all replicas, whatever their phase;
        without, once per interval in each process. A function that takes longer than the interval is followed
        at once, and never overlaps itself in this process.

        Args:
            seconds: the interval, more than 0.
            name: the task's name, for replicas to agree on.
            lock: a `TaskLock`, which takes from the task what it was not given: its name, a minimum hold of
                one interval, and a lease of 60 s or 1.5 intervals, whichever is longer. Any other lock is
                held while the function runs. A lock that is busy skips the fire.
            leader: an election. Only its leader runs the function, which is cancelled when leadership is
                lost.
            sync: a lock on what the function uses, or any other async context manager.

        They are entered in the order leader, lock, sync. When one of them refuses or fails, the function does
        not run, those entered before are given back at once, and the next try is one interval later.

        Raises:
            TaskDeclarationError: a parameter breaks a rule.
            TaskStateError: the tasks run.
        """
        interval = check_seconds("seconds", seconds)

        def declare(name: str) -> tuple[Trigger, list[Guard], FireLedger]:
            guards: list[Guard] = []
            task_lock: IntervalLock | None = None
            if leader is not None:
                guards.append(leader_guard(leader))
            if isinstance(lock, TaskLock):
                task_lock = lock.for_task(name, interval=interval)
                guards.append(task_lock_guard(task_lock))
            elif lock is not None:
                guards.append(lock_guard(lock))
            if sync is not None:
                guards.append(resource_guard(sync))
            return IntervalTrigger(interval, task_lock), guards, FireLedger()

        return self._declare(name, declare)

    every = interval

    def cron(
        self,
        expr: str,
        *,
        timezone: str | tzinfo = "UTC",
        name: str | None = None,
        misfire_grace_seconds: float | None = None,
        backend: ScheduleBackend | str | None = None,
        sync: AbstractAsyncContextManager[Any] | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Run the decorated function when `expr` matches the wall clock, once per match over all replicas.

        The fields are minute, hour, day of month, month, day of week. Where clocks change, a fixed hour
        matches each time of day once: a time that is skipped right after the gap, a time that is repeated
        at its first pass. An hour that begins with `*` follows elapsed time.

        When fires were missed, because no replica ran, the loop stood still or the backend failed, the
        latest of them runs once, on one replica; a task that never fired has missed nothing. A clock that
        steps back fires nothing twice. A replica that dies between claiming a fire and the end of the
        function loses that fire.

        Args:
            expr: the cron expression.
            timezone: the name of an IANA time zone.
            name: the task's name, for replicas to agree on.
            misfire_grace_seconds: a fire that is later than this is skipped; None runs it however late.
            backend: a schedule backend, or the name of a `Coordination` component; None takes the active
                app's.
            sync: a lock on what the function uses, entered before the fire is claimed, so that a replica that
                does not get it leaves the fire to others.

        Raises:
            TaskDeclarationError: a parameter breaks a rule, or no date ever matches.
            TaskStateError: the tasks run.
            ImportError: the extra `cron` is not installed.
        """
        expression = CronExpression(expr, timezone)
        grace = (
            None
            if misfire_grace_seconds is None
            else check_seconds("misfire_grace_seconds", misfire_grace_seconds)
        )
        schedule = check_backend(backend)
        guards = [] if sync is None else [resource_guard(sync)]

        def declare(name: str) -> tuple[Trigger, list[Guard], FireLedger]:
            ledger = FireLedger()
            trigger = CronTrigger(name, expression, grace=grace, backend=schedule, ledger=ledger)
            return trigger, guards, ledger

        return self._declare(name, declare)

    def _declare(
        self, name: str | None, declare: Callable[[str], tuple[Trigger, list[Guard], FireLedger]]
    ) -> Callable[[FunctionT], FunctionT]:
        def decorate(function: FunctionT) -> FunctionT:
            check_function(function)
            own_name = task_name(function, name)
            try:
                trigger, guards, ledger = declare(own_name)
            except SettingsValidationError as error:
                raise TaskDeclarationError(str(error)) from error
            self.add_task(ScheduledTask(own_name, function, trigger, guards, ledger))
            return function

        return decorate

    def _refuse(self, added: Sequence[Task]) -> None:
        if self._sealed:
            msg = "tasks cannot be added while they run; declare them before the app starts"
            raise TaskStateError(msg)
        names = [task.name for task in (*self.tasks, *added)]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            msg = f"name: another task has it already: {', '.join(double)}"
            raise TaskDeclarationError(msg)
