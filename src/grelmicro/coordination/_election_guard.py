"""Blocks that run only while this worker leads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import anyio

from grelmicro.coordination._holders import current_owner
from grelmicro.coordination.errors import LockNotOwnedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from grelmicro.coordination._election_term import Term

_Entered = list[tuple[AbstractContextManager[anyio.CancelScope, bool | None], anyio.CancelScope]]


class LeaderGuard:
    """An async context manager that any number of tasks may enter, one block each or nested.

    The block is cancelled when leadership is lost, and `LockNotOwnedError` raised in its place; the lease is
    not handed over before the block has ended.
    """

    def __init__(self, name: str, term: Callable[[], Awaitable[Term]]) -> None:
        self._name = name
        self._term = term
        self._entered: dict[object, _Entered] = {}

    async def __aenter__(self) -> None:
        term = await self._term()
        block = term.body()
        self._entered.setdefault(current_owner(), []).append((block, block.__enter__()))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> bool | None:
        owner = current_owner()
        entered = self._entered[owner]
        block, scope = entered.pop()
        if not entered:
            del self._entered[owner]
        swallowed = block.__exit__(exc_type, exc, tb)
        if scope.cancelled_caught:
            msg = f"election {self._name!r}: leadership was lost inside the block, which was cancelled"
            raise LockNotOwnedError(msg)
        return swallowed
