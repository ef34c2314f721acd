"""One connection to one server, shared by all calls: packed writes, replies matched in order.

Calls made in the same turn of the loop leave in one write, and replies are read by a task of the channel, so
that a caller's cancellation never leaves half a reply behind. A connection that is lost, or silent for longer
than a call may take, is thrown away: what was outstanding on it is handed back, the next call connects anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from grelmicro.errors import OutOfContextError
from grelmicro.providers._ending import end
from grelmicro.providers._redis.errors import REPLIES, LostError, NoReplyError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grelmicro.providers._redis.calls import Call, Script

_CLOSED = "the RedisProvider was closed"

_TICK = 0.01
"""Seconds that overdue calls are collected for, rather than waking up for each."""


class Connection(Protocol):
    """The part of redis-py's connection that a channel uses."""

    async def send_packed_command(self, command: bytes, check_health: bool) -> None: ...  # noqa: FBT001

    async def read_response(self, disable_decoding: bool, *, disconnect_on_error: bool) -> Any: ...  # noqa: FBT001

    async def disconnect(self, nowait: bool) -> None: ...  # noqa: FBT001


class Channel:
    """A queue of calls to one server. `failed(call, error)` gets each call that got no good reply."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        failed: Callable[[Call, Exception], None],
        call_timeout: float,
    ) -> None:
        self._connect = connect
        self._failed = failed
        self._call_timeout = call_timeout
        self._loop = asyncio.get_running_loop()
        self._again: deque[Call] = deque()
        self._queue: deque[Call] = deque()
        self._sent: deque[Call] = deque()
        self._known: dict[Script, float] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._lost: Exception | None = None
        self._closed = False

    def submit(self, call: Call, *, again: bool = False) -> None:
        """Send the call soon; `again` before any call that was never sent."""
        if self._closed:
            call.fail(OutOfContextError(_CLOSED))
            return
        (self._again if again else self._queue).append(call)
        self._wake.set()
        if self._task is None:
            self._task = self._loop.create_task(self._serve(), name="grelmicro-redis")
        if self._timer is None:
            self._set_timer()

    def forget_script(self, call: Call) -> None:
        """Note that the server did not know the call's script, unless it was sent there since."""
        if call.script is not None and self._known.get(call.script, 0.0) <= call.sent_at:
            self._known.pop(call.script, None)

    def reset(self, error: Exception) -> None:
        """Throw the connection away."""
        if self._lost is None and self._connection is not None:
            self._lost = error
            _abort(self._connection)
            self._wake.set()

    async def drain(self) -> None:
        """Wait until every call has ended, `call_timeout` at most."""
        while self._again or self._queue or self._sent:
            self._idle.clear()
            await self._idle.wait()

    async def aclose(self) -> None:
        """Close the connection. Calls that have not ended fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for call in chain(self._sent, self._again, self._queue):
            call.fail(OutOfContextError(_CLOSED))
        if self._task is not None:
            await end(self._task)

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            try:
                async with asyncio.timeout(self._call_timeout):
                    connection = await self._connect()
            except Exception as error:  # noqa: BLE001 - whatever it is, there is no connection
                self._wake.clear()
                unreachable = UnreachableError()
                unreachable.__cause__ = error
                self._hand_back(chain(self._take(self._again), self._take(self._queue)), unreachable)
                continue
            await self._converse(connection)

    async def _converse(self, connection: Connection) -> None:
        """Send and read until the connection is lost."""
        self._connection, self._lost = connection, None
        self._known.clear()
        reader = self._loop.create_task(self._read(connection), name="grelmicro-redis-replies")
        try:
            while self._lost is None:
                await self._wake.wait()
                self._wake.clear()
                if self._lost is None and (packet := self._next_packet()):
                    # Unbounded, because a reset ends it.
                    await connection.send_packed_command(packet, check_health=False)
        except Exception as error:  # noqa: BLE001 - asyncio and redis-py raise all kinds, even AttributeError
            self._lost = self._lost or error
        finally:
            self._connection = None
            try:
                await end(reader)
            finally:
                await discard(connection)
        lost = LostError()
        lost.__cause__ = self._lost
        self._hand_back(self._take(self._sent), lost)
        if self._again or self._queue:
            self._wake.set()

    def _next_packet(self) -> bytes:
        """Move what waits to what is sent, and return its bytes."""
        now = self._loop.time()
        parts: list[bytes] = []
        for call in chain(self._take(self._again), self._take(self._queue)):
            if not call.wanted:
                continue
            call.sent_at = now
            if call.script is not None:
                # The first call of a script on a connection brings it along.
                call.in_full = call.script not in self._known or call.redirects > 1
                if call.in_full:
                    self._known[call.script] = now
            self._sent.append(call)
            parts.append(call.packed())
        self._settle()
        return b"".join(parts)

    async def _read(self, connection: Connection) -> None:
        try:
            while True:
                try:
                    reply = await connection.read_response(True, disconnect_on_error=False)  # noqa: FBT003
                except REPLIES as error:
                    reply = error
                self._deliver(reply)
        except Exception as error:  # noqa: BLE001 - as above
            self.reset(error)

    def _deliver(self, reply: Any) -> None:
        if not self._sent:
            msg = "the server sent a reply to no request"
            raise ConnectionError(msg)
        call = self._sent[0]
        if call.skip:
            call.skip -= 1
            return
        self._sent.popleft()
        if isinstance(reply, Exception):
            self._failed(call, reply)
        else:
            call.resolve(reply)
        self._settle()

    def _set_timer(self) -> None:
        due = [
            call.deadline for call in chain(self._sent, self._again, self._queue) if not call.future.done()
        ]
        if self._sent:
            due.append(self._sent[0].sent_at + self._call_timeout)
        self._timer = None
        if due:
            when = max(min(due), self._loop.time() + _TICK)
            self._timer = self._loop.call_at(when, self._on_time)

    def _on_time(self) -> None:
        now = self._loop.time()
        for call in chain(self._sent, self._again, self._queue):
            if call.deadline <= now and not call.future.done():
                self._failed(call, NoReplyError())
        for waiting in (self._again, self._queue):
            keep = [call for call in waiting if call.deadline > now]
            waiting.clear()
            waiting.extend(keep)
        if self._sent and self._sent[0].sent_at + self._call_timeout <= now:
            self.reset(NoReplyError(f"silent for {self._call_timeout:g} s"))
        self._settle()
        self._set_timer()

    def _settle(self) -> None:
        if not (self._sent or self._again or self._queue):
            self._idle.set()

    def _hand_back(self, calls: Any, error: Exception) -> None:
        for call in list(calls):
            self._failed(call, error)
        self._settle()

    @staticmethod
    def _take(calls: deque[Call]) -> list[Call]:
        taken = list(calls)
        calls.clear()
        return taken


async def discard(connection: Connection) -> None:
    """Close a connection without any delay."""
    _abort(connection)
    await connection.disconnect(nowait=True)


def _abort(connection: Connection) -> None:
    # redis-py would flush first, which never ends on a connection that is stuck.
    writer = getattr(connection, "_writer", None)
    if writer is not None:
        writer.transport.abort()
