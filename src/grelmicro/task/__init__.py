"""Functions that run on a schedule, on one of many replicas or on each."""

from grelmicro.task._info import FireInfo, FireLedger, Outcome, Reason
from grelmicro.task._protocols import Task
from grelmicro.task._runner import ScheduledTask
from grelmicro.task._tasks import Tasks
from grelmicro.task.errors import TaskDeclarationError, TaskError, TaskStateError
from grelmicro.task.router import TaskRouter

__all__ = [
    "FireInfo",
    "FireLedger",
    "Outcome",
    "Reason",
    "ScheduledTask",
    "Task",
    "TaskDeclarationError",
    "TaskError",
    "TaskRouter",
    "TaskStateError",
    "Tasks",
]
