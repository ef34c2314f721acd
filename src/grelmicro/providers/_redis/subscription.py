"""Word from the server: channels listened to on a connection of their own, which proves itself by an echo.

A subscription can look well and deliver nothing: behind a proxy that pools connections, or through a network
that swallows packets. So it counts as heard only while messages that it sends to itself come back: at its
start, and every `_ECHO_INTERVAL` after that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from typing import TYPE_CHECKING, Any

from grelmicro.coordination._identity import fork_count
from grelmicro.errors import OutOfContextError
from grelmicro.providers._redis.calls import pack
from grelmicro.providers._redis.channel import discard, end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grelmicro.providers._redis.dispatch import Dispatcher

_ECHO = b"\0echo "
"""Starts the payload of an echo. No lock and no election has a name with a NUL."""
_ECHO_INTERVAL = 30.0
_ECHO_PATIENCE = 1.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
"""Seconds between tries to subscribe; doubles up to the longest."""

logger = logging.getLogger("grelmicro.redis")


class Subscription:
    """A task that listens. `on_change` is called when it starts to be heard, and when it ceases to be.

    The first channel is its own: nobody else listens to it.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        channels: Sequence[bytes],
        *,
        on_message: Callable[[bytes], object],
        on_change: Callable[[], object],
    ) -> None:
        self._dispatcher = dispatcher
        self._channels = channels
        self._on_message = on_message
        self._on_change = on_change
        self._echo = asyncio.Event()
        self._nonce = b""
        self._known_silent = False
        self.heard = False
        """Whether messages come through."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="grelmicro-redis-subscription")

    @property
    def closed(self) -> bool:
        """Whether it has ended for good."""
        return self._task.done()

    async def aclose(self) -> None:
        """Stop listening."""
        await end(self._task)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._listen()
            except OutOfContextError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, no word comes
                if self.heard:
                    pause = _FIRST_PAUSE
                self._changed(heard=False, reason=error)
            finally:
                self.heard = False
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _listen(self) -> None:
        async with asyncio.timeout(self._dispatcher.call_timeout):
            connection = await self._dispatcher.subscriber()
        reader: asyncio.Task[None] | None = None
        try:
            command = b"*%d\r\n%b" % (1 + len(self._channels), pack(b"SUBSCRIBE", *self._channels))
            async with asyncio.timeout(self._dispatcher.call_timeout):
                await connection.send_packed_command(command, check_health=False)
                for _ in self._channels:
                    await connection.read_response(True, disconnect_on_error=False)  # noqa: FBT003
            reader = asyncio.create_task(self._read(connection), name="grelmicro-redis-messages")
            while not reader.done():
                await self._prove(reader)
                self._changed(heard=True)
                await asyncio.wait([reader], timeout=_ECHO_INTERVAL)
            reader.result()
        finally:
            try:
                if reader is not None:
                    await end(reader)
            finally:
                await discard(connection)

    async def _prove(self, reader: asyncio.Task[None]) -> None:
        """Send an echo and see it come back.

        Raises:
            TimeoutError: it does not.
        """
        self._echo.clear()
        self._nonce = _ECHO + os.urandom(8).hex().encode()
        echo = asyncio.create_task(self._echo.wait())
        try:
            await self._dispatcher.command(b"PUBLISH", self._channels[0], self._nonce).future
            await asyncio.wait([echo, reader], timeout=_ECHO_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            echo.cancel()
        if not reader.done() and not self._echo.is_set():
            msg = f"an echo did not come back within {_ECHO_PATIENCE:g} s"
            raise TimeoutError(msg)

    async def _read(self, connection: Any) -> None:
        while True:
            match await connection.read_response(True, disconnect_on_error=False):  # noqa: FBT003
                case [b"message", bytes(), bytes() as payload]:
                    if payload == self._nonce:
                        self._echo.set()
                    elif not payload.startswith(_ECHO):
                        self._on_message(payload)
                case _:
                    continue

    def _changed(self, *, heard: bool, reason: Exception | None = None) -> None:
        if heard == self.heard and (heard or self._known_silent):
            return
        self.heard, self._known_silent = heard, not heard
        if heard:
            logger.info("Redis wakes waiting callers.")
        else:
            what = f"{type(reason).__name__}: {reason}" if reason is not None else "no reason given"
            logger.warning("Redis wakes nobody for now (%s); whoever waits polls meanwhile.", what)
        self._on_change()


class Listening:
    """What one adapter listens to, started with the first listener, by name."""

    def __init__(
        self,
        make: Callable[..., Subscription],
        new_channel: Callable[[], bytes],
        channels: Sequence[bytes],
        missed: Callable[[str], object],
    ) -> None:
        self._make = make
        self._new_channel = new_channel
        self._channels = channels
        self._missed = missed
        self._own: tuple[int, bytes] | None = None
        self._listeners: dict[str, set[Callable[[], object]]] = {}
        self._subscription: Subscription | None = None

    @property
    def channel(self) -> bytes:
        """The channel of this adapter in this process; a forked one has another."""
        if self._own is None or self._own[0] != fork_count():
            self._own = fork_count(), self._new_channel()
            self._listeners, self._subscription = {}, None
        return self._own[1]

    @property
    def heard(self) -> bool:
        """Whether messages come through."""
        return self._subscription is not None and self._subscription.heard

    def on(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` on messages that name `name`; returns what ends that."""
        channels = (self.channel, *self._channels)
        if self._subscription is None or self._subscription.closed:
            self._subscription = self._make(channels, on_message=self._message, on_change=self._wake_all)
        self._listeners.setdefault(name, set()).add(wake)

        def stop() -> None:
            listeners = self._listeners.get(name, set())
            listeners.discard(wake)
            if not listeners:
                self._listeners.pop(name, None)

        return stop

    def _message(self, payload: bytes) -> None:
        name = payload.decode(errors="surrogateescape")
        listeners = self._listeners.get(name)
        if listeners is None:
            self._missed(name)
            return
        for wake in tuple(listeners):
            wake()

    def _wake_all(self) -> None:
        """Let everybody look: words may have been lost, and the way to wait has changed."""
        for listeners in tuple(self._listeners.values()):
            for wake in tuple(listeners):
                wake()
