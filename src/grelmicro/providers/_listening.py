"""Word from a server: a subscription that proves itself by an echo, and who listens to what comes.

A subscription can look well and deliver nothing: behind a proxy that pools connections, or through a network
that swallows packets. So it counts as heard only while messages that it sends to itself come back: at its
start, and every `_ECHO_INTERVAL` after that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from grelmicro.coordination._identity import fork_count
from grelmicro.errors import OutOfContextError
from grelmicro.providers._ending import end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    Subscribe = Callable[[Sequence[str], Callable[[str], object], Callable[[], object]], "Subscription"]
    """Takes the channels, the first of them nobody else's, `on_message` and `on_change`."""

ECHO = ""
"""The payload of an echo. No lock and no election has an empty name."""
_ECHO_INTERVAL = 30.0
_ECHO_PATIENCE = 1.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
"""Seconds between tries to subscribe; doubles up to the longest."""
_LONGEST_SILENCE = 30.0
"""The same when all went well but for the echo, which may be for good."""

logger = logging.getLogger("grelmicro.providers")


class SilenceError(TimeoutError):
    """An echo did not come back."""


class Subscription(ABC):
    """A task that listens. `on_change` is called when it starts to be heard, and when it ceases to be."""

    vendor: ClassVar[str]
    """What a log calls the server."""

    def __init__(self, on_message: Callable[[str], object], on_change: Callable[[], object]) -> None:
        self._on_message = on_message
        self._on_change = on_change
        self._echo = asyncio.Event()
        self._known_silent = False
        self.heard = False
        """Whether messages come through."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="grelmicro-subscription")

    @abstractmethod
    def _listening(self) -> AbstractAsyncContextManager[asyncio.Future[None]]:
        """Subscribe, pass what comes to `_receive`, and yield what is done when nothing comes any more."""

    @abstractmethod
    async def _send_echo(self) -> None:
        """Send `ECHO` to the subscription's own channel, on the way that other processes' messages take."""

    @property
    def closed(self) -> bool:
        """Whether it has ended for good."""
        return self._task.done()

    async def aclose(self) -> None:
        """Stop listening."""
        await end(self._task)

    def _receive(self, payload: str) -> None:
        if payload == ECHO:
            self._echo.set()
        else:
            self._on_message(payload)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            longest = _LONGEST_PAUSE
            try:
                await self._listen()
            except OutOfContextError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, no word comes
                if self.heard:
                    pause = _FIRST_PAUSE
                if isinstance(error, SilenceError):
                    longest = _LONGEST_SILENCE
                self._changed(heard=False, reason=error)
            finally:
                self.heard = False
            pause = min(pause, longest)
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311
            pause *= 2

    async def _listen(self) -> None:
        async with self._listening() as ended:
            while not ended.done():
                await self._prove(ended)
                self._changed(heard=True)
                await asyncio.wait([ended], timeout=_ECHO_INTERVAL)
            ended.result()
            raise ConnectionError("the connection was closed")

    async def _prove(self, ended: asyncio.Future[None]) -> None:
        """Send an echo and see it come back.

        Raises:
            SilenceError: it does not.
        """
        self._echo.clear()
        echo = asyncio.create_task(self._echo.wait())
        try:
            await self._send_echo()
            either: set[asyncio.Future[Any]] = {echo, ended}
            await asyncio.wait(either, timeout=_ECHO_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            echo.cancel()
        if not ended.done() and not self._echo.is_set():
            raise SilenceError(f"an echo did not come back within {_ECHO_PATIENCE:g} s")

    def _changed(self, *, heard: bool, reason: Exception | None = None) -> None:
        if heard == self.heard and (heard or self._known_silent):
            return
        self.heard, self._known_silent = heard, not heard
        if heard:
            logger.info("%s wakes waiting callers.", self.vendor)
        else:
            what = f"{type(reason).__name__}: {reason}" if reason is not None else "no reason given"
            logger.warning("%s wakes nobody for now (%s); whoever waits polls meanwhile.", self.vendor, what)
        self._on_change()


class Listening:
    """What one adapter listens to, started with the first listener, by name."""

    def __init__(
        self,
        subscribe: Subscribe,
        new_channel: Callable[[], str],
        channels: Sequence[str] = (),
        *,
        missed: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._subscribe = subscribe
        self._new_channel = new_channel
        self._channels = channels
        self._missed = missed
        self._own: tuple[int, str] | None = None
        self._listeners: dict[str, set[Callable[[], object]]] = {}
        self._subscription: Subscription | None = None

    @property
    def channel(self) -> str:
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
            self._subscription = self._subscribe(channels, self._message, self._wake_all)
        self._listeners.setdefault(name, set()).add(wake)

        def stop() -> None:
            listeners = self._listeners.get(name, set())
            listeners.discard(wake)
            if not listeners:
                self._listeners.pop(name, None)

        return stop

    def _message(self, name: str) -> None:
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
