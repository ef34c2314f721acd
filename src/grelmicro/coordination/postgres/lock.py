"""Locks in a table: one row per name, which keeps the fencing token when the lock is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from grelmicro.coordination.abc import QueueingLockBackend, Refusal, Succession
from grelmicro.coordination.postgres._adapter import PostgresAdapter, checked_duration
from grelmicro.coordination.postgres._statement import UNDECIDED, Call, Statement, Undecided
from grelmicro.providers._listening import Listening

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import asyncpg

    from grelmicro.providers.postgres import PostgresProvider


class PostgresLockAdapter(PostgresAdapter, QueueingLockBackend):
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
        self._turns = Listening(self._provider.subscribe, self._new_channel, missed=self._pass_on_missed)
        sql = self._table.sql
        self._acquire = Statement(
            many=sql("lock_acquire"),
            one=sql("lock_acquire_one"),
            decide=_decide_acquire,
            decide_one=_decide_acquire_one,
            shared=True,
            collects=True,
        )
        self._enter = Statement(
            many=sql("lock_enter", me="($4::text[])[1]"), decide=_decide_enter, collects=True
        )
        self._hand_over = Statement(
            many=sql("lock_hand_over", me="($5::text[])[1]"), decide=_decide_hand_over, droppable=False
        )
        self._release = self._release_statement(and_freed=", {_call_next}", word="{_word_to_called}")
        self._pass_on = Statement(many=sql("lock_pass_on", me="''"), decide=_decide_nothing, droppable=False)
        self._holder = Statement(many=sql("lock_holder"), decide=_decide_holder, shared=True)

    @property
    @override
    def wakes(self) -> bool:
        return self._turns.heard

    @override
    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        fence: int | None = await self._call(self._acquire, name, token, token, checked_duration(duration))
        return fence

    @override
    async def acquire_or_enqueue(self, *, name: str, token: str, duration: float) -> int | Refusal:
        arguments = (token, checked_duration(duration), self._turns.channel)
        answer: int | Refusal = await self._call(self._enter, name, token, *arguments)
        return answer

    @override
    async def hand_over(self, *, name: str, token: str, to: str, duration: float) -> Succession:
        arguments = (token, to, checked_duration(duration), self._turns.channel)
        succession: Succession = await self._call(self._hand_over, name, token, *arguments)
        return succession

    @override
    async def release(self, *, name: str, token: str) -> bool:
        released: bool = await self._call(self._release, name, token, token, self._turns.channel)
        return released

    @override
    async def pass_on(self, *, name: str) -> None:
        await self._call(self._pass_on, name, None)

    @override
    def on_turn(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        return self._turns.on(name, wake)

    @override
    async def locked(self, *, name: str) -> bool:
        return await self._call(self._holder, name, None) is not None

    @override
    async def owned(self, *, name: str, token: str) -> bool:
        holder: str | None = await self._call(self._holder, name, token)
        return holder == token

    def _pass_on_missed(self, name: str) -> None:
        # Nobody waits for the reply. When it fails, the next process finds out by asking.
        call: asyncio.Future[None] = self._call(self._pass_on, name, None)
        call.add_done_callback(lambda future: future.exception())


def _decide_acquire(call: Call, row: asyncpg.Record | None) -> int | Literal[Undecided.UNDECIDED] | None:
    if row is None:
        return UNDECIDED
    if row["holder"] != call.token:
        return None
    fence: int | None = row["fence"]
    return UNDECIDED if fence is None else fence


def _decide_acquire_one(_: Call, row: asyncpg.Record | None) -> int | None:
    return None if row is None else row["fence"]


def _decide_enter(call: Call, row: asyncpg.Record | None) -> int | Refusal | Literal[Undecided.UNDECIDED]:
    if row is None:
        return UNDECIDED
    if row["holder"] != call.token:
        return Refusal(row["remaining"])
    fence: int | None = row["fence"]
    return UNDECIDED if fence is None else fence


def _decide_hand_over(_: Call, row: asyncpg.Record | None) -> Succession | Literal[Undecided.UNDECIDED]:
    if row is None:
        return Succession(None, others_wait=False)
    if row["fence"] is None:
        return UNDECIDED
    return Succession(row["fence"], others_wait=row["others_wait"])


def _decide_nothing(_call: Call, _row: asyncpg.Record | None) -> None:
    return None


def _decide_holder(_: Call, row: asyncpg.Record | None) -> str | None:
    return None if row is None else row["holder"]
