"""What every provider shares: counted opening, adapters for each protocol, a health check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Self

import anyio

from grelmicro.errors import OutOfContextError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from grelmicro.coordination.abc import LeaderElectionBackend, LockBackend, ScheduleBackend

DEFAULT_CALL_TIMEOUT = 5.0
"""Seconds that one call to a vendor may take, unless its provider says otherwise."""


class Provider(ABC):
    """One vendor. Opened by everything that uses it, it opens with the first and closes with the last."""

    vendor: ClassVar[str]

    def __init__(self) -> None:
        self._users = 0
        self._stack = AsyncExitStack()
        self._opening = anyio.Lock()

    @property
    def call_timeout(self) -> float:
        """Seconds that one call may take."""
        return DEFAULT_CALL_TIMEOUT

    @abstractmethod
    def lock(self) -> LockBackend:
        """Return a lock backend over this provider."""

    @abstractmethod
    def leaderelection(self) -> LeaderElectionBackend:
        """Return a leader election backend over this provider."""

    @abstractmethod
    def schedule(self) -> ScheduleBackend:
        """Return a schedule backend over this provider."""

    @property
    @abstractmethod
    def client(self) -> Any:
        """The vendor's own client.

        Raises:
            OutOfContextError: the provider is not open.
        """

    @abstractmethod
    async def check(self) -> None:
        """Make one round trip.

        Raises:
            ProviderError: the vendor did not answer well within `call_timeout`; its cause is attached.
            OutOfContextError: the provider is not open.
        """

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Open what is needed, pushing on `stack` what closes it again. Makes no round trip."""

    def default_components(self) -> Sequence[Any]:
        """Return the components that this provider stands for when it is given to an app alone."""
        from grelmicro.coordination import Coordination  # noqa: PLC0415 - a cycle

        return (Coordination(self),)

    @property
    def is_open(self) -> bool:
        """Whether somebody has it open."""
        return self._users > 0

    def _require_open(self) -> None:
        if not self.is_open:
            msg = (
                f"{type(self).__name__} is not open: use it inside 'async with micro:' of an app that was "
                "given it, or inside 'async with' of the provider or its adapter"
            )
            raise OutOfContextError(msg)

    async def __aenter__(self) -> Self:
        async with self._opening:
            if self._users == 0:
                async with AsyncExitStack() as stack:
                    await self._open(stack)
                    self._stack = stack.pop_all()
            self._users += 1
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            async with self._opening:
                self._users -= 1
                if self._users == 0:
                    await self._stack.aclose()
