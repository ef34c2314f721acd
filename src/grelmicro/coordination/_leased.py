"""What the primitives over a `LockBackend` share: finding the backend's calls, holders, renewal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

from anyio import current_time
from pydantic import model_validator

from grelmicro.coordination._calls import DeadlineError, LockCalls
from grelmicro.coordination._holders import Hold, Holders
from grelmicro.coordination._keep_alive import KeepAlive, check_keep_alive
from grelmicro.coordination._primitive import BaseLockConfig, LockPrimitive
from grelmicro.coordination.abc import LockBackend
from grelmicro.coordination.errors import LockNotOwnedError, LockReentrantError, LockReleaseError
from grelmicro.errors import SettingsValidationError
from grelmicro.types import Seconds


class LeasedLockConfig(BaseLockConfig):
    """Settings of the primitives whose holders have a lease."""

    lease_duration: Seconds = 60
    """Seconds until a lock that is neither extended nor released frees itself."""
    auto_extend: bool = False
    """Whether `async with` extends the lease at a third of its length and stops the block when it is lost."""
    max_hold_duration: Seconds | None = None
    """Seconds after which `auto_extend` lets the lease end; None sets no limit. At least a lease."""

    @model_validator(mode="after")
    def _keep_alive_relations(self) -> Self:
        check_keep_alive(self.auto_extend, self.max_hold_duration, self.lease_duration)
        return self


ConfigT = TypeVar("ConfigT", bound=LeasedLockConfig)


class LeasedLock(LockPrimitive[ConfigT, LockBackend]):
    """A primitive whose holders each have a lease on a `LockBackend`."""

    _component_attribute: ClassVar[str] = "lock_backend"
    _backend_methods: ClassVar[tuple[str, ...]] = ("acquire", "release", "locked", "owned")
    _noun: ClassVar[str]
    _calls_class: ClassVar[type[LockCalls]] = LockCalls

    _holders: Holders
    _cached_calls: LockCalls | None = None
    _kept_alive: WeakKeyDictionary[Any, KeepAlive]

    def _bind(self, name: str, config: ConfigT, backend: LockBackend | str | None) -> None:
        super()._bind(name, config, backend)
        self._kept_alive = WeakKeyDictionary()

    def _calls(self) -> LockCalls:
        backend = self.backend
        calls = self._cached_calls
        if calls is None or calls.backend is not backend or not calls.belong_here():
            calls = self._cached_calls = self._calls_class(backend)
        return calls

    def _refuse_reentry(self, owner: object) -> None:
        hold = self._holders.get(owner)
        if hold is not None and hold.lease.left() > 0:
            msg = f"{self._noun} {self._name!r} is already held here; it does not nest"
            raise LockReentrantError(msg)

    def _require_hold(self, owner: object) -> Hold:
        hold = self._holders.get(owner)
        if hold is None:
            msg = f"{self._noun} {self._name!r} is not held here"
            raise LockNotOwnedError(msg)
        return hold

    async def _renew(self, owner: object, hold: Hold, key: str, duration: float) -> None:
        """Set the lease to end `duration` seconds from now; one that has ended stays lost."""
        token, lease, calls = hold.handle.token, hold.lease, hold.calls
        if lease.left() <= 0:
            raise self._lapsed(owner, hold, key)
        end = lease.deadline
        # Whatever becomes of the request, it may shorten what was left.
        lease.deadline = min(end, current_time() + duration)
        try:
            grant = await calls.acquire(key, token, duration, deadline=end, give_back=False)
        except DeadlineError:
            raise self._lapsed(owner, hold, key) from None
        if grant is not None and grant.fencing_token == hold.handle.fencing_token:
            lease.deadline = grant.deadline
            return
        self._forget(owner, hold)
        if grant is not None:  # it had lapsed, and this request took it anew
            try:
                await calls.release(key, token, within=duration)
            except LockReleaseError:
                calls.clean_up(key, token)
        raise self._lost()

    def _keep_alive(
        self, owner: object, hold: Hold, key: str, *, duration: Callable[[], float], longest: float | None
    ) -> None:
        """Extend the lease from here on, and cancel the running task when it is lost."""
        keep_alive = self._kept_alive[owner] = KeepAlive(
            hold.lease,
            renew=lambda seconds: self._renew(owner, hold, key, seconds),
            duration=duration,
            longest=longest,
        )
        keep_alive.start()

    def _stop_keep_alive(self, owner: object, error: BaseException | None) -> bool:
        """End that, `error` coming out of the block, and say whether the block ended by losing the lease."""
        keep_alive = None if isinstance(owner, int) else self._kept_alive.pop(owner, None)
        return keep_alive is not None and keep_alive.stop(error)

    def _refuse_threads(self) -> None:
        if self._config.auto_extend:
            msg = "auto_extend: works in async code only, as a thread cannot be stopped when the lock is lost"
            raise SettingsValidationError(msg)

    def _forget(self, owner: object, hold: Hold) -> None:
        """Note that it is held no longer."""
        self._holders.drop(owner, hold)
        hold.lease.end()

    def _lapsed(self, owner: object, hold: Hold, key: str) -> LockNotOwnedError:
        """Forget a hold whose lease ended by the local clock; the backend may end it a round trip later."""
        self._forget(owner, hold)
        hold.calls.clean_up(key, hold.handle.token)
        return self._lost()

    def _lost(self) -> LockNotOwnedError:
        return LockNotOwnedError(f"{self._noun} {self._name!r} is no longer held here: its lease has ended")
