"""One statement to the server, and what follows from its reply, its refusal or its loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from grelmicro.errors import ProviderError
from grelmicro.providers._postgres.sending import cannot, is_lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grelmicro.coordination.postgres._collector import Collector
    from grelmicro.coordination.postgres._queues import Queues
    from grelmicro.coordination.postgres._statement import Call
    from grelmicro.coordination.postgres._table import Table
    from grelmicro.providers._postgres.connections import Connections
    from grelmicro.providers._postgres.sending import Connection

_NO_TABLE = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError)
_ROW_LOCKED = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


class Exchange:
    """Sends gathered calls, and answers, fails or puts back each of them."""

    def __init__(
        self, connections: Connections, queues: Queues, table: Table, collector: Collector | None
    ) -> None:
        self._connections = connections
        self._queues = queues
        self._table = table
        self._collector = collector
        self.last_size = 1
        """How many calls were sent together last."""

    async def send(self, connection: Connection, calls: Sequence[Call]) -> Connection | None:
        """Send calls of one kind and see to what follows. Returns the connection, if it still is of use."""
        if not calls:
            return connection
        request = (
            calls[0].statement.for_one(calls[0]) if len(calls) == 1 else calls[0].statement.for_many(calls)
        )
        self.count(calls)
        try:
            rows = await self._connections.sending.fetch(connection, request.sql, *request.arguments)
        except Exception as error:  # noqa: BLE001 - each call hears of what concerns it
            return await self.failed(connection, calls, error)
        self._queues.answer(calls, request.decide, rows)
        return connection

    def count(self, calls: Sequence[Call]) -> None:
        """Note that these calls are sent together."""
        self.last_size = len(calls)
        if self._collector is not None and calls[0].statement.collects:
            self._collector.count(len(calls))

    async def failed(
        self, connection: Connection, calls: Sequence[Call], error: Exception
    ) -> Connection | None:
        """See to calls whose statement failed. Returns the connection, if it still is of use."""
        lost = await self._refused(connection, calls, error)
        if lost is None:
            return connection
        self._connections.drop(connection)
        self._lost(calls, lost)
        await self._connections.distrust()
        return None

    async def _refused(
        self, connection: Connection, calls: Sequence[Call], error: Exception
    ) -> Exception | None:
        """See to them unless the connection was lost; else return the error."""
        if is_lost(connection, error):
            return error
        if isinstance(error, _NO_TABLE) and not calls[0].table_missed:
            return await self._create_table(connection, calls)
        if self._connections.sending.adapt(error):
            self._queues.put_back(calls)
        elif isinstance(error, asyncpg.ProgramLimitExceededError) and (
            wordless := calls[0].statement.wordless
        ):
            for call in calls:
                call.statement = wordless
            self._queues.put_back(calls)
        elif len(calls) > 1:
            self._queues.put_back(calls, alone=True)
        elif isinstance(error, _ROW_LOCKED):
            self._queues.stick(calls[0])
        else:
            self._queues.fail(calls, error)
        return None

    async def _create_table(self, connection: Connection, calls: Sequence[Call]) -> Exception | None:
        """Create what these calls missed; as for the rest, see `_refused`."""
        try:
            await self._table.create(self._connections.sending, connection, self._connections.where)
        except Exception as failure:  # noqa: BLE001 - the callers hear of it
            if isinstance(failure, ProviderError | asyncpg.UndefinedColumnError):
                self._queues.fail(calls, failure)
            elif is_lost(connection, failure):
                return failure
            else:
                self._queues.fail(calls, cannot("did not create a table", self._connections.where, failure))
            return None
        for call in calls:
            call.table_missed = True
        self._queues.put_back(calls)
        return None

    def _lost(self, calls: Sequence[Call], error: Exception) -> None:
        """Send again, once, what was under way on a connection that was lost: repeating is harmless."""
        again = [call for call in calls if not call.resent]
        self._queues.fail(
            [call for call in calls if call.resent], cannot("was lost twice", self._connections.where, error)
        )
        for call in again:
            call.resent = True
        self._queues.put_back(again)

    @property
    def must_collect(self) -> bool:
        """Whether `finish` has more to do than to give back the connection."""
        return self._collector is not None and self._collector.is_due

    async def finish(self, connection: Connection) -> None:
        """Collect old rows, if that is due, and give back the connection."""
        if self._collector is not None and self._collector.is_due:
            usable = await self._collector.run(self._connections.sending, connection)
            if not usable:
                self._connections.drop(connection)
                return
        await self._connections.give(connection)
