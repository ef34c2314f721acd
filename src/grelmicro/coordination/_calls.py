"""Asking a lock backend: bounded, one kind of error for each operation, nothing granted and forgotten.

What a call leaves behind, at its one await:

- acquire cancelled, out of time, failed, or answered after its lease: perhaps granted. A release of that
  token follows in a task of its own, behind the acquire itself; the caller does not wait for it.
- release cancelled: perhaps done. A second release follows in a task of its own, for the rest of the first
  one's time, and the caller's cancellation is delivered when that has ended; "not owned" then means that
  the first one worked.
- release out of time or failed: unclear, and said so. The lease ends by itself.
Whatever becomes of a release, who waits for the lock in this process looks again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, runtime_checkable

import anyio
from anyio import current_time, get_cancelled_exc_class

from grelmicro._detached import spawn
from grelmicro._threads import running_loop, runs_here
from grelmicro.coordination._holders import current_clock
from grelmicro.coordination._line import Lines
from grelmicro.coordination._survivor import SurvivingLockBackend
from grelmicro.coordination.abc import QueueingLockBackend, Refusal
from grelmicro.coordination.errors import LockAcquireError, LockBackendError, LockReleaseError
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT

if TYPE_CHECKING:
    from grelmicro.coordination.abc import LockBackend

logger = logging.getLogger("grelmicro.coordination")

_CLEAN_UP_PAUSE = 0.05
"""Seconds before a failed clean-up is tried again; doubles each time."""


_SLACK = 0.01
"""Seconds by which a backend that bounds its calls itself may be late."""
_UNBOUND = nullcontext()


class Grant(NamedTuple):
    """What a backend granted, and when that ends by the local clock."""

    fencing_token: int
    deadline: float


class Answer(NamedTuple):
    """What a backend answered to a request for a lock."""

    grant: Grant | None
    """None when somebody else holds it."""
    remaining: float = math.inf
    """Seconds that the holder has left, if the backend says so."""


class Inheritance(NamedTuple):
    """What became of a lock that was handed over."""

    grant: Grant | None
    """None when the old holder's lease had ended."""
    others_wait: bool
    """Whether somebody waits in another process."""


@runtime_checkable
class AtOnceLockBackend(Protocol):
    """What a `LockBackend` offers besides when it decides in memory."""

    def acquire_at_once(self, name: str, token: str, duration: float) -> int | None:
        """Grant like `acquire`."""
        ...

    def release_at_once(self, name: str, token: str) -> bool:
        """Free like `release`."""
        ...


class DeadlineError(Exception):
    """The caller's own deadline came before the backend's answer."""


class BadReplyError(Exception):
    """The backend answered something that its protocol does not allow."""


class translated:  # noqa: N801 - used like a function
    """Raise whatever a backend raises as `error`, with the cause attached."""

    __slots__ = ("_error", "_what")

    def __init__(self, error: type[LockBackendError], what: str) -> None:
        self._error = error
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, cause: BaseException | None, tb: object) -> None:
        if isinstance(cause, Exception) and not isinstance(cause, DeadlineError):
            reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
            msg = f"cannot {self._what}: {reason}"
            raise self._error(msg) from cause


class LockCalls:
    """The calls of one primitive to one backend."""

    def __init__(self, backend: LockBackend) -> None:
        self.backend = backend
        self.loop = running_loop()
        """Where it is called, also for threads whose backend does not know its loop."""
        self.thread = get_ident()
        """Where that loop runs."""
        self.lines = Lines.of(backend, self.loop)
        """Who waits in this process."""
        self.call_timeout: float = getattr(backend, "call_timeout", DEFAULT_CALL_TIMEOUT)
        self._self_bound = self.call_timeout - _SLACK if getattr(backend, "bounds_calls", False) else math.inf
        self.clock = current_clock()
        """The loop's clock, for use in any thread."""
        survives = getattr(backend, "survives_cancellation", False)
        self._calls: LockBackend = backend if survives else SurvivingLockBackend(backend, self.call_timeout)
        self._queue = backend if survives and isinstance(backend, QueueingLockBackend) else None
        self._at_once = backend if isinstance(backend, AtOnceLockBackend) and _is_whole(backend) else None

    async def acquire(
        self, key: str, token: str, duration: float, *, deadline: float | None = None, give_back: bool = True
    ) -> Grant | None:
        """Ask once. Returns None when somebody else holds it.

        `give_back=False` is for renewals: when the outcome is unclear, the holder still is one.

        Raises:
            LockAcquireError: the backend failed, gave no answer in time, or one that cannot be.
            DeadlineError: `deadline` (loop time) came first.
        """
        start = self.clock()
        limit = min(self.call_timeout, duration)
        if deadline is not None:
            limit = min(limit, deadline - start)
        with translated(LockAcquireError, "acquire the lock"):
            try:
                with self._bound(limit):
                    fencing_token = await self._calls.acquire(name=key, token=token, duration=duration)
                return None if fencing_token is None else self._grant(fencing_token, start, duration)
            except BaseException as error:
                if give_back:
                    self.clean_up(key, token)
                if isinstance(error, TimeoutError) and not str(error):
                    raise self._no_answer(limit, deadline) from error
                raise

    def belong_here(self) -> bool:
        """Say whether this code runs on the loop that they are made on."""
        return runs_here(self.loop, self.thread) or self.loop is running_loop()

    @property
    def at_once(self) -> bool:
        """Whether the backend needs no waiting."""
        return self._at_once is not None

    def acquire_at_once(self, key: str, token: str, duration: float) -> Grant | None:
        """Ask a backend that needs no waiting."""
        start = self.clock()
        fencing_token = cast("AtOnceLockBackend", self._at_once).acquire_at_once(key, token, duration)
        return None if fencing_token is None else Grant(fencing_token, start + duration)

    def release_at_once(self, key: str, token: str) -> bool:
        """Let go on a backend that needs no waiting."""
        return cast("AtOnceLockBackend", self._at_once).release_at_once(key, token)

    @property
    def queueing(self) -> bool:
        """Whether the backend can hand over, and may say whose turn it is."""
        return self._queue is not None

    @property
    def wakes(self) -> bool:
        """Whether the backend says whose turn it is."""
        return self._queue is not None and self._queue.wakes

    def on_turn(self, key: str, wake: Callable[[], object]) -> Callable[[], object]:
        """Call `wake` when it is this process's turn; returns what ends that."""
        return _nothing if self._queue is None else self._queue.on_turn(key, wake)

    async def acquire_or_enqueue(self, key: str, token: str, duration: float) -> Answer:
        """Ask once, and have this process woken when it is its turn.

        Raises:
            LockAcquireError: as for `acquire`.
        """
        queue = self._queue
        if queue is None:
            return Answer(await self.acquire(key, token, duration))
        start = self.clock()
        with translated(LockAcquireError, "acquire the lock"):
            try:
                with self._bound(min(self.call_timeout, duration)):
                    reply = await queue.acquire_or_enqueue(name=key, token=token, duration=duration)
                if isinstance(reply, Refusal):
                    return Answer(None, reply.remaining)
                return Answer(self._grant(reply, start, duration))
            except BaseException:
                self.clean_up(key, token)
                raise

    async def hand_over(self, key: str, token: str, to: str, duration: float, end: float) -> Inheritance:
        """End the lease of `token` and grant the lock to `to`, in one step, by `end` (loop time).

        Raises:
            LockReleaseError: as for `free`.
        """
        if self._queue is None:
            raise NotImplementedError
        start = self.clock()
        with translated(LockReleaseError, "hand over the lock"):
            with self._bound(min(end - start, duration)):
                succession = await self._queue.hand_over(name=key, token=token, to=to, duration=duration)
            fencing_token = succession.fencing_token
            grant = None if fencing_token is None else self._grant(fencing_token, start, duration)
            return Inheritance(grant, succession.others_wait)

    async def release(
        self, key: str, token: str, *, within: float, answered: Callable[[], object] | None = None
    ) -> bool:
        """Let go, in favour of whoever is next in line here, and say whether `token` held the lock.

        Takes at most `within` seconds and `call_timeout`, also when the caller is cancelled. `answered` is
        called as soon as the backend has said whether `token` held it, so also before a cancellation goes on
        its way.

        Raises:
            LockReleaseError: the backend failed or gave no answer in time, so the lock may still be held.
        """
        end = self.clock() + min(self.call_timeout, within)
        line = self.lines.get(key)
        try:
            held = await (self.free(key, token, end) if line is None else line.release(token, end))
        except get_cancelled_exc_class():
            again = spawn(self.free, key, token, end, name="grelmicro-release")
            try:
                await again.finish(answered)
            except LockReleaseError as error:
                logger.warning("A release was cancelled and its repetition failed too: %s", error)
            raise
        if answered is not None:
            answered()
        return held

    async def free(self, key: str, token: str, end: float) -> bool:
        """Let go for all, by `end` (loop time), and say whether `token` held the lock.

        Raises:
            LockReleaseError: the backend failed or gave no answer in time, so the lock may still be held.
        """
        limit = end - self.clock()
        with translated(LockReleaseError, "release the lock"):
            try:
                with self._bound(limit):
                    released = await self._calls.release(name=key, token=token)
            except TimeoutError as error:
                raise self._no_answer(limit, None) from error
            finally:
                if (line := self.lines.get(key)) is not None:
                    line.look_again()
            return _boolean(released)

    async def pass_on(self, key: str) -> None:
        """Leave a turn to the next process. One that gets lost is made up for by asking now and then."""
        if self._queue is not None:
            with anyio.move_on_after(self.call_timeout):
                await self._queue.pass_on(name=key)

    async def locked(self, key: str, error: type[LockBackendError]) -> bool:
        """Say whether anybody holds it."""
        with translated(error, "check the lock"), anyio.fail_after(self.call_timeout):
            return _boolean(await self._calls.locked(name=key))

    async def owned(self, key: str, token: str, error: type[LockBackendError]) -> bool:
        """Say whether `token` holds it."""
        with translated(error, "check the lock"), anyio.fail_after(self.call_timeout):
            return _boolean(await self._calls.owned(name=key, token=token))

    def clean_up(self, key: str, token: str) -> None:
        """Release what `token` may hold, in the background, trying for up to `call_timeout`."""
        spawn(self._clean_up, key, token, name="grelmicro-clean-up")

    async def _clean_up(self, key: str, token: str) -> None:
        end = current_time() + self.call_timeout
        pause = _CLEAN_UP_PAUSE
        while True:
            try:
                await self.free(key, token, max(end, current_time() + pause))
            except LockReleaseError as error:
                if current_time() + pause >= end:
                    logger.warning("Could not give back a lock that may have been granted: %s", error)
                    return
            else:
                return
            await anyio.sleep(pause)
            pause *= 2

    def _grant(self, fencing_token: Any, start: float, duration: float) -> Grant:
        if type(fencing_token) is not int:
            msg = f"a fencing token must be an integer, not {type(fencing_token).__name__}"
            raise BadReplyError(msg)
        if self.clock() >= start + duration:
            msg = "the grant arrived after its lease had ended"
            raise TimeoutError(msg)
        return Grant(fencing_token, start + duration)

    def _bound(self, limit: float) -> AbstractContextManager[object]:
        """Return what ends a call after `limit` seconds: nothing, if it does so by itself."""
        return _UNBOUND if limit >= self._self_bound else anyio.fail_after(limit)

    def _no_answer(self, limit: float, deadline: float | None) -> Exception:
        if deadline is not None and current_time() >= deadline:
            return DeadlineError()
        return TimeoutError(f"no answer within {max(limit, 0):g} s")


def _is_whole(backend: AtOnceLockBackend) -> bool:
    """Say whether nobody has replaced `acquire` or `release` alone, as recorders do."""
    for name in ("acquire", "release"):
        places = (vars(backend) if hasattr(backend, "__dict__") else {}, *map(vars, type(backend).__mro__))
        if f"{name}_at_once" not in next(place for place in places if name in place):
            return False
    return True


def _nothing() -> None:
    pass


def _boolean(reply: Any) -> bool:
    if isinstance(reply, bool):
        return reply
    msg = f"expected a boolean, not {type(reply).__name__}"
    raise BadReplyError(msg)
