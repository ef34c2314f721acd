"""A lock that replicas share: one holder, for as long as its lease lasts.

States of a holder (a task, or a thread through `from_thread`):

free -> asking -> held -> releasing -> free

- asking: cancelled, failed or out of time goes back to free, and what was perhaps granted is given back.
- held: ends by itself when the lease does, with no call made; the next operation finds it lapsed.
- releasing: goes to free when the backend has answered, or when it was the end of a block. A bare release
  that failed goes back to held, so that it can be tried again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from anyio import current_time
from pydantic import Field

from grelmicro._threads import yield_once
from grelmicro.coordination._calls import DeadlineError, Grant, LockCalls
from grelmicro.coordination._holders import Hold, Holders, Lease, LockHandle, current_owner
from grelmicro.coordination._identity import Identity, random_hex
from grelmicro.coordination._leased import LeasedLock, LeasedLockConfig
from grelmicro.coordination._line import Place
from grelmicro.coordination._lock_threads import ThreadLockAdapter, loop_of
from grelmicro.coordination._names import lock_key
from grelmicro.coordination._waiting import check_timeout
from grelmicro.coordination.abc import LockBackend
from grelmicro.coordination.errors import (
    LockBackendError,
    LockLockedCheckError,
    LockNotOwnedError,
    LockOwnedCheckError,
    LockReleaseError,
    LockTimeoutError,
    WouldBlockError,
)
from grelmicro.types import Jitter, Seconds

if TYPE_CHECKING:
    from types import TracebackType
    from uuid import UUID

logger = logging.getLogger("grelmicro.coordination")


class LockConfig(LeasedLockConfig):
    """Settings of a `Lock`."""

    retry_interval: Seconds = Field(default=0.1, ge=0.001)
    """Seconds between tries while waiting; at least 0.001."""
    retry_jitter: Jitter = 0.1
    """Spread of the pauses between tries, in [0, 1)."""


class Lock(LeasedLock[LockConfig]):
    """A lock with a lease, owned by the task (or thread) that acquired it.

    At most one holder is live per name, over every process that uses the same backend. It frees itself
    `lease_duration` seconds after the last acquire or extend, counted by the backend's clock, whatever
    becomes of the holder; one that may stand still that long should let the resource check `fencing_token`.

    Each `Lock` object is a worker of its own, and each task and thread that uses it a holder of its own. The
    lock does not nest. A task hands nothing on to its children: they wait like anybody else.
    """

    _config_class: ClassVar[type[LockConfig]] = LockConfig
    _env_kind: ClassVar[str] = "LOCK"
    _noun: ClassVar[str] = "lock"

    def __init__(
        self,
        name: str,
        *,
        backend: LockBackend | str | None = None,
        worker: str | UUID | None = None,
        lease_duration: Seconds | None = None,
        retry_interval: Seconds | None = None,
        retry_jitter: float | None = None,
        env_prefix: str | None = None,
        env_load: bool | None = None,
        auto_extend: bool | None = None,
        max_hold_duration: Seconds | None = None,
    ) -> None:
        """Make a lock; neither the event loop nor the backend is touched.

        A setting that is left out comes from the environment (`GREL_LOCK_CART_LEASE_DURATION` for the lock
        `cart`, `GREL_LOCK_LEASE_DURATION` for the one named `default`), else from `LockConfig`. `backend` is
        an instance, or the name of a `Coordination` component of the active app.

        Raises:
            SettingsValidationError: the name or a setting breaks a rule (also a ValueError).
        """
        super().__init__(
            name,
            backend=backend,
            env_prefix=env_prefix,
            env_load=env_load,
            worker=worker,
            lease_duration=lease_duration,
            retry_interval=retry_interval,
            retry_jitter=retry_jitter,
            auto_extend=auto_extend,
            max_hold_duration=max_hold_duration,
        )

    def _bind(self, name: str, config: LockConfig, backend: LockBackend | str | None) -> None:
        super()._bind(name, config, backend)
        self._key = lock_key(name)
        self._holders = Holders(Identity(config.worker, random_hex))

    def share_holders(self, shared: MutableMapping[str, Holders]) -> None:
        """Be one lock with all others of this name that share the same mapping. For the component."""
        self._holders = shared.setdefault(self._name, self._holders)

    @property
    def from_thread(self) -> ThreadLockAdapter:
        """The same lock for a worker thread, blocking; the thread is the holder.

        Raises:
            SettingsValidationError: the lock has `auto_extend`; a thread cannot be stopped when it is lost.
        """
        self._refuse_threads()
        return ThreadLockAdapter(self, lambda: loop_of(self.backend, self._cached_calls))

    async def acquire(self, *, timeout: float | None = None) -> LockHandle:
        """Wait for the lock and take it.

        Args:
            timeout: seconds to wait; None waits for ever, 0 tries exactly once. Over by then, plus one turn
                of the event loop, whatever the network does.

        Cancelled or timed out, it leaves nothing held: a grant that slipped through is given back.

        Raises:
            LockReentrantError: this task holds it already.
            LockTimeoutError: the timeout came first (also a TimeoutError).
            LockAcquireError: the backend failed; the cause is attached.
            ValueError: the timeout is negative, not a number, or of another type.
        """
        return await self._acquire(current_owner(self._cached_calls), check_timeout(timeout))

    async def acquire_nowait(self) -> LockHandle:
        """Take the lock if it is free now: one try.

        Raises:
            LockReentrantError: this task holds it already.
            WouldBlockError: somebody else holds it.
            LockAcquireError: the backend failed; the cause is attached.
        """
        return await self._acquire_nowait(current_owner())

    async def extend(self) -> LockHandle:
        """Set the lease to end `lease_duration` seconds from now (it does not add up) and return the handle.

        A lease that has ended stays lost, also when nobody took the lock since.

        Raises:
            LockNotOwnedError: this task does not hold it, or no longer.
            LockAcquireError: the backend failed; the lock is still held until its lease ends.
        """
        return await self._extend(current_owner())

    async def release(self) -> None:
        """Free the lock. Started once, it finishes even when the caller is cancelled.

        Raises:
            LockNotOwnedError: this task does not hold it, or no longer.
            LockReleaseError: the backend failed; the release can be tried again.
        """
        await self._release(current_owner(self._cached_calls))

    async def locked(self) -> bool:
        """Say whether anybody holds it.

        Raises:
            LockLockedCheckError: the backend failed; the cause is attached.
        """
        return await self._calls().locked(self._key, LockLockedCheckError)

    async def owned(self) -> bool:
        """Say whether this task holds it, by the backend's word.

        Raises:
            LockOwnedCheckError: the backend failed; the cause is attached.
        """
        return await self._owned(current_owner())

    async def __aenter__(self) -> LockHandle:
        owner = current_owner(self._cached_calls)
        handle = await self._acquire(owner, None)
        config = self._config
        if config.auto_extend:
            self._keep_alive(
                owner,
                self._require_hold(owner),
                self._key,
                duration=lambda: self._config.lease_duration,
                longest=config.max_hold_duration,
            )
        return handle

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        owner = current_owner(self._cached_calls)
        if self._stop_keep_alive(owner, exc):
            with suppress(LockNotOwnedError, LockReleaseError):
                await self._leave(owner, None)
            raise self._lost()
        await self._leave(owner, exc)

    async def do_acquire(self, token: str, *, duration: Seconds) -> int | None:
        """Ask the backend once for `token`; returns its fencing token, or None when somebody else holds it.

        Raises:
            LockAcquireError: the backend failed.
        """
        grant = await self._calls().acquire(self._key, token, duration)
        return None if grant is None else grant.fencing_token

    async def do_release(self, token: str) -> bool:
        """Ask the backend to release `token`, and say whether it held the lock.

        Raises:
            LockReleaseError: the backend failed.
        """
        return await self._calls().release(self._key, token, within=math.inf)

    async def do_owned(self, token: str) -> bool:
        """Ask the backend whether `token` holds the lock.

        Raises:
            LockOwnedCheckError: the backend failed.
        """
        return await self._calls().owned(self._key, token, LockOwnedCheckError)

    async def do_thread_acquire(self, thread_id: int, *, timeout: float | None = None) -> LockHandle:
        """Run `acquire` on the event loop, with a thread as the holder."""
        return await self._acquire(thread_id, check_timeout(timeout))

    async def do_thread_acquire_nowait(self, thread_id: int) -> LockHandle:
        """Run `acquire_nowait` on the event loop, with a thread as the holder."""
        return await self._acquire_nowait(thread_id)

    async def do_thread_extend(self, thread_id: int) -> LockHandle:
        """Run `extend` on the event loop, with a thread as the holder."""
        return await self._extend(thread_id)

    async def do_thread_release(self, thread_id: int) -> None:
        """Run `release` on the event loop, with a thread as the holder."""
        await self._release(thread_id)

    async def do_thread_give_up(self, thread_id: int) -> None:
        """Take nothing for a thread that no longer waits; at once, since it may be asking anew already."""
        self._abandon(thread_id, self._holders.get(thread_id))

    async def _acquire(self, owner: object, timeout: float | None) -> LockHandle:
        self._refuse_reentry(owner)
        config = self._config
        calls = self._calls()
        token = self._holders.identity.new_token()
        if timeout == 0:
            if handle := await self._try(owner, calls, token, config, None):
                return handle
            raise self._timed_out(timeout)
        deadline = None if timeout is None else current_time() + timeout
        lines = calls.lines
        came_first = lines.nobody(self._key)
        if came_first and calls.at_once:
            await yield_once()
            if (grant := calls.acquire_at_once(self._key, token, config.lease_duration)) is not None:
                return self._hold(owner, calls, token, grant)
        elif came_first:
            duration = config.lease_duration
            asking = calls.acquire(self._key, token, duration, deadline=deadline)
            try:
                if (grant := await lines.ask_first(self._key, duration, asking)) is not None:
                    return self._hold(owner, calls, token, grant)
            except DeadlineError:
                raise self._timed_out(timeout) from None
        place = Place(
            token,
            duration=config.lease_duration,
            interval=config.retry_interval,
            jitter=config.retry_jitter,
        )
        grant = await lines.open(self._key, calls).wait(place, deadline, in_front=came_first)
        if grant is None:
            raise self._timed_out(timeout)
        return self._hold(owner, calls, token, grant)

    async def _acquire_nowait(self, owner: object) -> LockHandle:
        self._refuse_reentry(owner)
        token = self._holders.identity.new_token()
        if handle := await self._try(owner, self._calls(), token, self._config, None):
            return handle
        msg = f"lock {self._name!r} is held by somebody else"
        raise WouldBlockError(msg)

    async def _try(
        self, owner: object, calls: LockCalls, token: str, config: LockConfig, deadline: float | None
    ) -> LockHandle | None:
        grant = await calls.acquire(self._key, token, config.lease_duration, deadline=deadline)
        return None if grant is None else self._hold(owner, calls, token, grant)

    def _hold(self, owner: object, calls: LockCalls, token: str, grant: Grant) -> LockHandle:
        lease = Lease(grant.deadline, calls.clock)
        handle = LockHandle(self._name, token, grant.fencing_token, lease)
        self._holders.add(owner, Hold(handle, lease, calls))
        return handle

    async def _extend(self, owner: object) -> LockHandle:
        hold = self._require_hold(owner)
        await self._renew(owner, hold, self._key, self._config.lease_duration)
        return hold.handle

    async def _release(self, owner: object) -> None:
        hold = self._require_hold(owner)
        left = hold.lease.left()
        if left <= 0:
            raise self._lapsed(owner, hold, self._key)
        calls = hold.calls
        if calls.at_once and calls.lines.get(self._key) is None:
            released = calls.release_at_once(self._key, hold.handle.token)
            self._forget(owner, hold)
            if not released:
                raise self._lost()
            return
        try:
            released = await calls.release(
                self._key, hold.handle.token, within=left, answered=lambda: self._forget(owner, hold)
            )
        except LockReleaseError:
            hold.perhaps_released = True
            raise
        if not released and not hold.perhaps_released:
            raise self._lost()

    async def _owned(self, owner: object) -> bool:
        hold = self._holders.get(owner)
        if hold is None:
            return False
        return await hold.calls.owned(self._key, hold.handle.token, LockOwnedCheckError)

    async def _leave(self, owner: object, error: BaseException | None) -> None:
        """End a block: the hold is gone afterwards, and the body's own error comes first."""
        hold = self._holders.get(owner)
        try:
            await self._release(owner)
        except (LockNotOwnedError, LockBackendError) as problem:
            if error is None:
                raise
            error.add_note(f"Leaving the block of lock {self._name!r} failed too: {problem}")
            logger.warning("Leaving the block of lock %r after an error: %s", self._name, problem)
        finally:
            self._abandon(owner, hold)

    def _abandon(self, owner: object, hold: Hold | None) -> None:
        """Forget a hold that is still there, and release it in the background."""
        if hold is not None and self._holders.get(owner) is hold:
            self._forget(owner, hold)
            hold.calls.clean_up(self._key, hold.handle.token)

    def _timed_out(self, timeout: float | None) -> LockTimeoutError:
        return LockTimeoutError(f"lock {self._name!r} was not free within {timeout:g} s")
