"""Locks in Redis."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from grelmicro.coordination.abc import LockBackend
from grelmicro.coordination.redis._adapter import RedisAdapter, load_script, milliseconds

_ACQUIRE = load_script("_held", "acquire")
_RELEASE = load_script("_held", "release")
_INSPECT = load_script("_held", "inspect")

_FREE, _OWNED, _HELD = range(3)


class RedisLockAdapter(RedisAdapter, LockBackend):
    """A `LockBackend` on Redis: leases end by the server's clock, in whole milliseconds, rounded up.

    Released and expired locks leave no key. Fencing tokens come from a fixed number of counters without
    expiry (64 for each prefix), each shared by many names; they keep growing also when the server lost them.
    """

    component_keyword: ClassVar[str] = "lock"
    kind: ClassVar[bytes] = b"lock"

    @override
    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        keys = (self._key(name), self._shard_key(name, b"fence"))
        call = self._run(_ACQUIRE, keys, token.encode(), milliseconds(duration))
        match await call.future:
            case [bytes() as fence, int()] if fence.isdigit():
                return int(fence) or None
            case _:
                raise self._bad_reply(call)

    @override
    async def release(self, *, name: str, token: str) -> bool:
        # Carried through when its caller is cancelled. "Not held" after a lost reply: the first try freed it.
        call = self._run(_RELEASE, (self._key(name),), token.encode(), finish=True)
        return await self._flag(call) or call.uncertain

    @override
    async def locked(self, *, name: str) -> bool:
        return await self._inspect(name, "") != _FREE

    @override
    async def owned(self, *, name: str, token: str) -> bool:
        return await self._inspect(name, token) == _OWNED

    async def _inspect(self, name: str, token: str) -> int:
        call = self._run(_INSPECT, (self._key(name),), token.encode())
        match await call.future:
            case int() as state if state in (_FREE, _OWNED, _HELD):
                return state
            case _:
                raise self._bad_reply(call)
