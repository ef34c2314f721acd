"""Locks in a table: one row per name, which keeps the fencing token when the lock is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from grelmicro.coordination.postgres._adapter import PostgresAdapter, checked_duration
from grelmicro.coordination.postgres._statement import UNDECIDED, Call, Statement, Undecided

if TYPE_CHECKING:
    import asyncpg

    from grelmicro.providers.postgres import PostgresProvider


class PostgresLockAdapter(PostgresAdapter):
    """A `LockBackend` on a table. Leases run by the server's clock, whatever the time zones of its clients.

    The table is created at the first call that misses it; see `schema_sql` for users who may not. Rows of
    names that nobody used for an hour are deleted, a few at a time, in the wake of later calls.
    """

    component_keyword: ClassVar[str] = "lock"
    _table_template: ClassVar[str] = "lock_table"
    _forgets: ClassVar[bool] = True

    def __init__(
        self,
        *,
        provider: PostgresProvider | None = None,
        table_name: str = "grelmicro_locks",
        schema: str = "public",
    ) -> None:
        super().__init__(provider, table_name, schema)
        sql = self._table.sql
        self._acquire = Statement(
            many=sql("lock_acquire"),
            one=sql("lock_acquire_one"),
            decide=_decide_acquire,
            decide_one=_decide_acquire_one,
            shared=True,
            collects=True,
        )
        self._release = Statement(
            many=sql("release"), one=sql("release_one"), decide=decide_release, droppable=False
        )
        self._holder = Statement(many=sql("lock_holder"), decide=_decide_holder, shared=True)

    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        """Grant or renew: see `LockBackend`."""
        fence: int | None = await self._call(self._acquire, name, token, token, checked_duration(duration))
        return fence

    async def release(self, *, name: str, token: str) -> bool:
        """Free the lock: see `LockBackend`."""
        released: bool = await self._call(self._release, name, token, token)
        return released

    async def locked(self, *, name: str) -> bool:
        """Look: see `LockBackend`."""
        return await self._call(self._holder, name, None) is not None

    async def owned(self, *, name: str, token: str) -> bool:
        """Look: see `LockBackend`."""
        holder: str | None = await self._call(self._holder, name, token)
        return holder == token


def _decide_acquire(call: Call, row: asyncpg.Record | None) -> int | Literal[Undecided.UNDECIDED] | None:
    if row is None:
        return UNDECIDED
    if row["holder"] != call.token:
        return None
    fence: int | None = row["fence"]
    return UNDECIDED if fence is None else fence


def _decide_acquire_one(_: Call, row: asyncpg.Record | None) -> int | None:
    return None if row is None else row["fence"]


def decide_release(call: Call, row: asyncpg.Record | None) -> bool | Literal[Undecided.UNDECIDED]:
    """Decide what release.sql and release_one.sql answer."""
    if row is None:
        return call.resent  # after a lost reply it has been released, or has lapsed
    return True if row["released"] else UNDECIDED


def _decide_holder(_: Call, row: asyncpg.Record | None) -> str | None:
    return None if row is None else row["holder"]
