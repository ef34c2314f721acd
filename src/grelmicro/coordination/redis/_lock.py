"""Locks in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from grelmicro.coordination.abc import QueueingLockBackend, Refusal, Succession
from grelmicro.coordination.redis._adapter import RedisAdapter, load_script, milliseconds
from grelmicro.errors import ProviderError
from grelmicro.providers._listening import Listening

if TYPE_CHECKING:
    from collections.abc import Callable

    from grelmicro.providers._redis.calls import Call
    from grelmicro.providers.redis import RedisProvider

_ACQUIRE = load_script("_held", "_mint", "acquire")
_ENTER = load_script("_held", "_mint", "enter")
_HAND_OVER = load_script("_held", "_mint", "hand_over")
_RELEASE = load_script("_held", "_queue", "release")
_PASS_ON = load_script("_held", "_queue", "pass_on")
_INSPECT = load_script("_held", "inspect")

_FREE, _OWNED, _HELD = range(3)


_QUEUE_MEMORY = milliseconds(10)
"""How long a queue outlasts the last sign of life of those who stand in it."""


class RedisLockAdapter(RedisAdapter, QueueingLockBackend):
    """A `LockBackend` on Redis: leases end by the server's clock, in whole milliseconds, rounded up.

    Released and expired locks leave no key. Fencing tokens come from a fixed number of counters without
    expiry (64 for each prefix), each shared by many names; they keep growing also when the server lost them.
    """

    component_keyword: ClassVar[str] = "lock"
    kind: ClassVar[bytes] = b"lock"

    def __init__(self, *, provider: RedisProvider | None = None, prefix: str = "") -> None:
        super().__init__(provider=provider, prefix=prefix)
        self._turns = Listening(self._provider.subscribe, self._new_channel, missed=self._pass_on_missed)

    @property
    @override
    def wakes(self) -> bool:
        return self._turns.heard

    @override
    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        call = self._run(_ACQUIRE, self._keys(name)[:2], token.encode(), milliseconds(duration))
        return (await self._grant(call))[0]

    @override
    async def acquire_or_enqueue(self, *, name: str, token: str, duration: float) -> int | Refusal:
        arguments = (token.encode(), milliseconds(duration), self._turns.channel.encode(), _QUEUE_MEMORY)
        fence, left = await self._grant(self._run(_ENTER, self._keys(name), *arguments))
        return Refusal(left / 1000) if fence is None else fence

    @override
    async def hand_over(self, *, name: str, token: str, to: str, duration: float) -> Succession:
        arguments = (token.encode(), to.encode(), milliseconds(duration), self._turns.channel.encode())
        call = self._run(_HAND_OVER, self._keys(name), *arguments, finish=True)
        fence, waiting = await self._grant(call)
        if fence is None and call.uncertain:
            raise ProviderError("Redis lost its reply to a hand-over, and now knows neither token")
        return Succession(fence, others_wait=waiting > 0)

    @override
    async def release(self, *, name: str, token: str) -> bool:
        # Carried through when its caller is cancelled. "Not held" after a lost reply: the first try freed it.
        lock, _, queue = self._keys(name)
        spread = self._provider.dispatcher.spread
        arguments = (token.encode(), name.encode(), self._turns.channel.encode(), spread)
        call = self._run(_RELEASE, (lock, queue), *arguments, finish=True)
        return await self._flag(call) or call.uncertain

    @override
    async def pass_on(self, *, name: str) -> None:
        await self._flag(self._pass_on(name))

    @override
    def on_turn(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        return self._turns.on(name, wake)

    @override
    async def locked(self, *, name: str) -> bool:
        return await self._inspect(name, "") != _FREE

    @override
    async def owned(self, *, name: str, token: str) -> bool:
        return await self._inspect(name, token) == _OWNED

    def _pass_on(self, name: str) -> Call:
        lock, _, queue = self._keys(name)
        spread = self._provider.dispatcher.spread
        return self._run(_PASS_ON, (lock, queue), name.encode(), spread, finish=True)

    def _pass_on_missed(self, name: str) -> None:
        # Nobody waits for the reply. When it fails, the next process finds out by asking.
        self._pass_on(name).future.add_done_callback(lambda future: future.exception())

    def _keys(self, name: str) -> tuple[bytes, bytes, bytes]:
        """Return the keys of a lock, of its shard's counter, and of its queue."""
        rest = name.encode()
        return self._key(name), self._shard_key(name, b"fence"), self._shard_key(name, b"queue:" + rest)

    async def _grant(self, call: Call) -> tuple[int | None, int]:
        match await call.future:
            case [bytes() as fence, int() as number] if fence.isdigit():
                return int(fence) or None, number
            case _:
                raise self._bad_reply(call)

    async def _inspect(self, name: str, token: str) -> int:
        call = self._run(_INSPECT, (self._key(name),), token.encode())
        match await call.future:
            case int() as state if state in (_FREE, _OWNED, _HELD):
                return state
            case _:
                raise self._bad_reply(call)
