"""Lets the calls of any lock backend survive the cancellation of their caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from grelmicro._detached import Detached, spawn

if TYPE_CHECKING:
    from grelmicro.coordination.abc import LockBackend

T = TypeVar("T")


class SurvivingLockBackend:
    """A `LockBackend` around another: each call runs in a task of its own, those of one token in order.

    A call that takes longer than `call_timeout` is cancelled, so that those behind it come to their turn.
    """

    survives_cancellation = True

    def __init__(self, backend: LockBackend, call_timeout: float) -> None:
        self._backend = backend
        self._call_timeout = call_timeout
        self._last: dict[tuple[str, str], Detached[Any]] = {}

    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        """Pass on."""
        return await self._run(
            (name, token), lambda: self._backend.acquire(name=name, token=token, duration=duration)
        )

    async def release(self, *, name: str, token: str) -> bool:
        """Pass on."""
        return await self._run((name, token), lambda: self._backend.release(name=name, token=token))

    async def locked(self, *, name: str) -> bool:
        """Pass on."""
        return await self._backend.locked(name=name)

    async def owned(self, *, name: str, token: str) -> bool:
        """Pass on."""
        return await self._backend.owned(name=name, token=token)

    async def _run(self, key: tuple[str, str], call: Callable[[], Awaitable[T]]) -> T:
        before = self._last.get(key)

        async def in_order() -> T:
            try:
                if before is not None:
                    await before.wait()
                with anyio.fail_after(self._call_timeout):
                    return await call()
            finally:
                if self._last.get(key) is this:
                    del self._last[key]

        this = spawn(in_order, name="grelmicro-lock-call")
        self._last[key] = this
        await this.wait()
        return this.result()
