"""One fire: how far it came, and what is said about it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from anyio import current_time

from grelmicro.coordination import _clock
from grelmicro.coordination.errors import LockNotOwnedError, LockTimeoutError, WouldBlockError
from grelmicro.task._guards import Guard
from grelmicro.task._info import FireInfo, Outcome, Reason

logger = logging.getLogger("grelmicro.task")

_ORDINARY = frozenset({Reason.BUSY, Reason.CLAIMED, Reason.NOT_LEADER, Reason.STOPPED})
"""Skips that are part of normal work with several replicas."""


class SkipError(Exception):
    """This fire is not run here."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class Fire:
    """One fire on its way through the guards and the function."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._began_at: float | None = None
        self._duration = 0.0
        self._finished = False
        self._error: Exception | None = None
        self._skip: SkipError | None = None
        self._needs_lead = False
        self.started_at = _clock.wall_time()
        self.committed = False
        """The function runs, has run, or is about to: only a hard stop ends the fire from here on."""
        self.outcome = Outcome.SKIPPED
        self.reason: Reason | None = None
        self.admitted_at = current_time()
        """When the reply came that let this replica run (loop time)."""

    @property
    def ran(self) -> bool:
        """Whether the function was called."""
        return self._began_at is not None

    async def enter(self, guard: Guard, stack: AsyncExitStack) -> None:
        """Pass a guard.

        Raises:
            SkipError: it does not let the fire pass.
        """
        try:
            await stack.enter_async_context(guard.hold(self))
        except (WouldBlockError, LockTimeoutError) as error:
            raise self.skip(guard.reason, str(error)) from error
        except Exception as error:
            raise self.skip(Reason.BACKEND_ERROR, f"{type(error).__name__}: {error}") from error
        self._needs_lead |= guard.reason is Reason.NOT_LEADER
        if guard.decides:
            self.admitted_at = current_time()

    def skip(self, reason: Reason, why: str) -> SkipError:
        """Note that the fire is not run, and return the error to raise."""
        self._skip = SkipError(reason, why)
        return self._skip

    async def run(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call the function."""
        self._began_at = current_time()
        try:
            await function()
            self._finished = True
        except Exception as error:
            self._error = error
            raise
        finally:
            self._duration = current_time() - self._began_at

    def end(self, problem: BaseException | None) -> FireInfo:
        """Say how it ended, `problem` having come out of it, and log what deserves a line."""
        self.outcome, self.reason = self._verdict(problem)
        return FireInfo(_clock.utc(self.started_at), self.outcome, self._duration, self.reason)

    def _verdict(self, problem: BaseException | None) -> tuple[Outcome, Reason | None]:
        if self._error is not None:
            logger.error("Task %r failed after %.3f s", self._task, self._duration, exc_info=self._error)
            return Outcome.ERROR, Reason.BODY_ERROR
        if self._finished:
            return self._finished_verdict(problem)
        if self.ran:
            return self._cancelled_verdict(problem)
        return Outcome.SKIPPED, self._skip_reason()

    def _finished_verdict(self, problem: BaseException | None) -> tuple[Outcome, Reason | None]:
        if isinstance(problem, LockNotOwnedError):
            logger.warning(
                "Task %r ran for %.3f s and lost meanwhile what let it run, so another replica may have run "
                "it too; raise the lease_duration above that, or call refresh() on the way: %s",
                self._task,
                self._duration,
                problem,
            )
            return Outcome.ERROR, Reason.LEASE_LOST
        if isinstance(problem, Exception):
            logger.warning("Task %r ran, then a lock was not given back: %s", self._task, problem)
            return Outcome.SUCCESS, Reason.RELEASE_ERROR
        logger.debug("Task %r ran for %.3f s", self._task, self._duration)
        return Outcome.SUCCESS, None

    def _cancelled_verdict(self, problem: BaseException | None) -> tuple[Outcome, Reason | None]:
        if problem is None or isinstance(problem, LockNotOwnedError):  # the guard itself had cancelled it
            lost = "leads" if self._needs_lead else "holds its lock"
            logger.warning(
                "Task %r was cancelled after %.3f s: this replica no longer %s",
                self._task,
                self._duration,
                lost,
            )
            return Outcome.ERROR, Reason.LEADERSHIP_LOST if self._needs_lead else Reason.LEASE_LOST
        logger.warning("Task %r was cancelled after %.3f s", self._task, self._duration)
        return Outcome.ERROR, Reason.STOPPED

    def _skip_reason(self) -> Reason:
        skip = self._skip
        if skip is None:
            return Reason.STOPPED
        level = logging.DEBUG if skip.reason in _ORDINARY else logging.WARNING
        logger.log(level, "Task %r was skipped (%s): %s", self._task, skip.reason, skip)
        return skip.reason
