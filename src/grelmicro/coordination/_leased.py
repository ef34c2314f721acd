"""What the primitives over a `LockBackend` share: finding the backend's calls, holders, renewal."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from anyio import current_time

from grelmicro._threads import running_loop
from grelmicro.coordination._calls import DeadlineError, LockCalls
from grelmicro.coordination._holders import Hold, Holders
from grelmicro.coordination._primitive import BaseLockConfig, LockPrimitive
from grelmicro.coordination.abc import LockBackend
from grelmicro.coordination.errors import LockNotOwnedError, LockReentrantError, LockReleaseError

ConfigT = TypeVar("ConfigT", bound=BaseLockConfig)


class LeasedLock(LockPrimitive[ConfigT, LockBackend]):
    """A primitive whose holders each have a lease on a `LockBackend`."""

    _component_attribute: ClassVar[str] = "lock_backend"
    _backend_methods: ClassVar[tuple[str, ...]] = ("acquire", "release", "locked", "owned")
    _noun: ClassVar[str]
    _calls_class: ClassVar[type[LockCalls]] = LockCalls

    _holders: Holders
    _cached_calls: LockCalls | None = None

    def _calls(self) -> LockCalls:
        backend = self.backend
        calls = self._cached_calls
        if calls is None or calls.backend is not backend or calls.loop is not running_loop():
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
