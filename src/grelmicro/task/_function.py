"""The function of a task: its name, and calling it wherever it belongs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from anyio import CapacityLimiter, to_thread

from grelmicro.coordination._names import check_name
from grelmicro.errors import SettingsValidationError
from grelmicro.task.errors import TaskDeclarationError, TaskError


class TaskFunction:
    """A function without parameters, sync or async.

    A sync function runs in a worker thread of its own kind: tasks never wait for the pool that sync web
    routes share. A thread cannot be interrupted, so a cancelled fire waits until its function has returned;
    the function may ask `anyio.from_thread.check_cancelled()` and stop by itself.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._is_async = _is_async(function)

    async def __call__(self) -> None:
        """Run it to its end.

        Raises:
            TaskError: a cancellation came out of it that nobody had asked for.
        """
        try:
            if self._is_async:
                await self._function()
                return
            # A task never overlaps itself, so one thread is enough for each.
            (result,) = await to_thread.run_sync(self._boxed, limiter=CapacityLimiter(1))
            if inspect.isawaitable(result):  # such as a lambda around an async function
                await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            msg = "the function let through the cancellation of something that it waited for"
            raise TaskError(msg) from error

    def _boxed(self) -> tuple[Any]:  # trio lets no coroutine out of a thread
        return (self._function(),)


def check_function(function: object) -> Callable[[], Any]:
    """Return `function` if a task can call it.

    Raises:
        TaskDeclarationError: it cannot be called, needs arguments, or is a generator function.
    """
    if not callable(function):
        msg = f"function: must be callable, not {type(function).__name__}"
        raise TaskDeclarationError(msg)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        msg = "function: must not be a generator function, whose body would never run"
        raise TaskDeclarationError(msg)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature to check
        return function
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        msg = f"function: is called without arguments, but needs {', '.join(needed)}"
        raise TaskDeclarationError(msg)
    return function


def task_name(function: Callable[[], Any], name: str | None) -> str:
    """Return the name of a task: as given, else `module:function`, the same in every replica.

    Raises:
        TaskDeclarationError: the name breaks the naming rule, or the function has no lasting name of its own.
    """
    try:
        return check_name(_own_name(function) if name is None else name)
    except SettingsValidationError as error:
        raise TaskDeclarationError(str(error)) from None


def _own_name(function: Callable[[], Any]) -> str:
    qualname = getattr(function, "__qualname__", "")
    if not inspect.isroutine(function) or inspect.ismethod(function) or "." in qualname or "<" in qualname:
        msg = (
            "name: must be given for a lambda, a nested function, a method, a partial or a callable object, "
            "since replicas agree on a task by its name"
        )
        raise TaskDeclarationError(msg)
    return f"{function.__module__}:{qualname}"


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its kind is asked for, not whether it is there
    )
