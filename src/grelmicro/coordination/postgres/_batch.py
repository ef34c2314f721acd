"""Calls made in the same turn of the event loop travel together.

A lane takes a connection, then whatever is ready, as one statement for many names, until nothing is. Few
lanes run at a time, so what comes while all are busy travels in larger batches. Calls that have to wait for a
row lock are moved to a lane of their own, where they delay nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
from typing_extensions import override

from grelmicro.coordination.postgres._exchange import Exchange
from grelmicro.coordination.postgres._queues import Queues
from grelmicro.coordination.postgres._statement import Call, Statement
from grelmicro.errors import OutOfContextError
from grelmicro.providers._postgres.driven import Driven
from grelmicro.providers._postgres.sending import cannot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grelmicro.coordination.postgres._collector import Collector
    from grelmicro.coordination.postgres._table import Table
    from grelmicro.providers._postgres.connections import Connections
    from grelmicro.providers._postgres.sending import Connection

_MAX_LANES = 4
_CROWDED = 1.0
"""Seconds without new lanes after one found no connection while others were at work."""


class _Lone(Driven):
    """One call under way by itself."""

    __slots__ = ("_batcher", "calls", "connection", "request")

    def __init__(self, batcher: Batcher, connection: Connection, call: Call) -> None:
        self._batcher = batcher
        self.connection = connection
        self.calls = (call,)
        self.request = call.statement.for_one(call)
        self.drive(connection.fetch(self.request.sql, *self.request.arguments))

    @override
    def returned(self, result: list[asyncpg.Record]) -> None:
        self._batcher.lone_answered(self, result)

    @override
    def raised(self, error: BaseException) -> None:
        self._batcher.lone_failed(self, error)


class Batcher:
    """Sends the calls on one table over the connections of one open provider."""

    def __init__(self, connections: Connections, table: Table, collector: Collector | None) -> None:
        self.connections = connections
        self._loop = asyncio.get_running_loop()
        self._queues = Queues(connections.call_timeout)
        self._exchange = Exchange(connections, self._queues, table, collector)
        self._lanes = 0
        self._gathering: object | None = None
        """The lane that will take what is ready as soon as it has a connection."""
        self._max_lanes = _MAX_LANES
        self._unsticking = False
        self._connected = 0
        self._attempts = 0

    def call(
        self, statement: Statement, name: str, token: str | None, *arguments: Any
    ) -> asyncio.Future[Any]:
        """Return the future answer of a call. Cancelling it undoes nothing that was sent.

        Raises:
            TypeError: the name or the token is no string.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - it would spoil its batch
            raise TypeError(f"name: must be a string, not {type(name).__name__}")
        if token is not None and not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            raise TypeError(f"token: must be a string, not {type(token).__name__}")
        call = Call(statement, name, token, arguments, self._loop.create_future())
        call.attempt = self._attempts
        if self._lanes or self._exchange.last_size > 1 or not self._send_at_once(call):
            self._queues.add(call)
            self._open_lanes()
        return call.future

    def _send_at_once(self, call: Call) -> bool:
        """Send a call that has no company, if a connection is at hand; waiting would be for nothing."""
        connections = self.connections
        if not connections.sending.is_plain or self._queues.is_busy(call.name):
            return False
        connection = connections.take_kept()
        if connection is None:
            return False
        self._queues.add_under_way(call, connection)
        self._lanes += 1
        self._connected += 1
        connections.begin()
        self._exchange.count((call,))
        _Lone(self, connection, call)
        return True

    def lone_answered(self, lone: _Lone, rows: list[asyncpg.Record]) -> None:
        """See to the reply of a call that was sent at once."""
        self._lanes -= 1
        self._connected -= 1
        self.connections.end()
        self._queues.answer(lone.calls, lone.request.decide, rows)
        if self._exchange.must_collect:
            self.connections.start(self._exchange.finish(lone.connection))
        else:
            self.connections.keep(lone.connection)
        self._open_lanes()

    def lone_failed(self, lone: _Lone, error: BaseException) -> None:
        """See to a call that was sent at once and failed."""
        self._lanes -= 1
        self._connected -= 1
        self.connections.end()
        for call in lone.calls:
            call.connection = None
        failure = error if isinstance(error, Exception) else ConnectionError("the connection was closed")
        self.connections.start(self._lone_lane(lone, failure))

    def _open_lanes(self) -> None:
        if self._queues.ready and self._gathering is None and self._lanes < self._max_lanes:
            self._lanes += 1
            self._gathering = lane = object()
            self.connections.start(self._ready_lane(lane))
        if self._queues.stuck and not self._unsticking:
            self._unsticking = True
            self.connections.start(self._stuck_lane())

    async def _ready_lane(self, lane: object) -> None:
        queues = self._queues

        async def send(connection: Connection) -> Connection | None:
            self._has_gathered(lane)
            calls = queues.gather()
            self._open_lanes()
            return await self._exchange.send(connection, calls)

        try:
            await self._serve(lambda: bool(queues.ready), send)
        finally:
            self._has_gathered(lane)
            self._lanes -= 1
            self._open_lanes()

    async def _lone_lane(self, lone: _Lone, failure: Exception) -> None:
        failures = [failure]

        async def see_to(connection: Connection) -> Connection | None:
            return await self._exchange.failed(connection, lone.calls, failures.pop())

        try:
            await self._serve(lambda: bool(failures), see_to, lone.connection)
        finally:
            self._open_lanes()

    async def _stuck_lane(self) -> None:
        queues = self._queues

        async def send(connection: Connection) -> Connection | None:
            """Send all of a kind, skipping locked rows, then one that waits a moment for its row."""
            calls = queues.gather_stuck()
            remaining = await self._exchange.send(connection, calls)
            if remaining is None or len(calls) == 1:
                return remaining
            return await self._exchange.send(remaining, queues.gather_stuck(most=1))

        try:
            await self._serve(lambda: bool(queues.stuck), send)
        finally:
            self._unsticking = False
            self._open_lanes()

    def _has_gathered(self, lane: object) -> None:
        if self._gathering is lane:
            self._gathering = None

    async def _serve(
        self,
        is_needed: Callable[[], bool],
        send: Callable[[Connection], Awaitable[Connection | None]],
        connection: Connection | None = None,
    ) -> None:
        """Have a connection, replaced when lost, for as long as it is needed."""
        try:
            while is_needed():
                if connection is None:
                    connection = await self._connect()
                if connection is None:
                    return
                self._connected += 1
                try:
                    connection = await send(connection)
                finally:
                    self._connected -= 1
            if connection is not None:
                await self._exchange.finish(connection)
                connection = None
        except asyncio.CancelledError:
            self._queues.fail_all(OutOfContextError("PostgresProvider was closed before the answer came"))
            raise
        finally:
            if connection is not None:
                self.connections.drop(connection)

    async def _connect(self) -> Connection | None:
        self._attempts += 1
        attempt = self._attempts
        try:
            return await self.connections.take()
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            if self._connected:  # who has a connection will see to the calls
                self._max_lanes = 1
                self._loop.call_later(_CROWDED, self._end_crowd)
            else:
                self._queues.fail_before(attempt, cannot("cannot be reached", self.connections.where, error))
            return None

    def _end_crowd(self) -> None:
        self._max_lanes = _MAX_LANES
        self._open_lanes()
