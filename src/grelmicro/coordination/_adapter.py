"""What every adapter over a provider shares: whose provider it is, opening, the loop it lives on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from anyio.lowlevel import current_token

from grelmicro.providers._base import Provider

if TYPE_CHECKING:
    from types import TracebackType

ProviderT = TypeVar("ProviderT", bound=Provider)


class ProviderAdapter(Generic[ProviderT]):
    """Base of the adapters. Without a provider it makes one from the environment, and owns it."""

    survives_cancellation = True
    """Calls run on when their caller is cancelled; calls of one name and token keep their order."""

    bounds_calls = True
    """Each call ends within `call_timeout` by itself."""

    component_keyword: ClassVar[str]
    """The keyword under which `Coordination` takes this adapter: `lock`, `election` or `schedule`."""

    _loop: Any = None
    """The asyncio loop (on trio: the `TrioToken`) that it was opened on; threads find their way by it."""

    def __init__(self, provider: ProviderT | None) -> None:
        self._provider: ProviderT = self._new_provider() if provider is None else provider

    @classmethod
    def _new_provider(cls) -> ProviderT:
        """Build a provider from the environment."""
        raise NotImplementedError

    @property
    def provider(self) -> ProviderT:
        """The provider that it speaks through."""
        return self._provider

    @property
    def call_timeout(self) -> float:
        """Seconds that one call may take."""
        return self._provider.call_timeout

    def as_component(self) -> Any:
        """Return the component that this adapter stands for when it is given to an app alone."""
        from grelmicro.coordination import Coordination  # noqa: PLC0415 - a cycle

        backends: dict[str, Any] = {self.component_keyword: self}
        return Coordination(**backends)

    async def __aenter__(self) -> Self:
        await self._provider.__aenter__()
        self._loop = current_token().native_token
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._provider.__aexit__(exc_type, exc, tb)
