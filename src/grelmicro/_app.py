"""The app: what a service uses, opened and closed together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from grelmicro import _ambient
from grelmicro._registry import Component, Key, Registry, find
from grelmicro.errors import NoActiveAppError, OutOfContextError

if TYPE_CHECKING:
    from types import TracebackType


class Grelmicro:
    """A registry of providers and components with one lifetime.

    `uses` takes, in the order of opening: providers, components, adapters, any other async context manager,
    and classes of these that need no arguments. A provider given alone stands for a default component of
    every kind that it serves. A provider that several components share is opened once, before the first of
    them, and closed after the last. When opening fails half-way, what was open is closed in reverse.

    `micro.coordination` is `micro.get("coordination")`, and so for every kind.
    """

    def __init__(self, uses: Iterable[Any] = ()) -> None:
        self._registry = Registry()
        self._overrides: list[dict[Key, Component]] = []
        self._stack: AsyncExitStack | None = None
        for item in uses:
            self.use(item)

    def use(self, item: Any) -> Self:
        """Add something, and return the app.

        Raises:
            ComponentAlreadyRegisteredError: another component has its kind and name.
            SettingsValidationError: it is nothing that an app can use.
            OutOfContextError: the app is open.
        """
        if self._stack is not None:
            msg = "the app is open; use() what it needs before"
            raise OutOfContextError(msg)
        self._registry.add(item)
        return self

    @staticmethod
    def current() -> Grelmicro:
        """Return the app that is active in the calling context.

        Raises:
            NoActiveAppError: none is.
        """
        app = _ambient.active.get()
        if not isinstance(app, Grelmicro):
            msg = "no app is active here: run this inside 'async with micro:'"
            raise NoActiveAppError(msg)
        return app

    def get(self, kind: str, name: str = "default") -> Any:
        """Return the component of that kind and name; an override comes first.

        Raises:
            ComponentNotRegisteredError: there is none.
        """
        return find(self._found(), kind, name)

    def __getattr__(self, kind: str) -> Any:
        if kind.startswith("_"):
            raise AttributeError(kind)
        return self.get(kind)

    @property
    def components(self) -> tuple[Any, ...]:
        """The components in force."""
        return tuple(self._found().values())

    @property
    def providers(self) -> tuple[Any, ...]:
        """The providers in the order of their opening, each once."""
        return tuple(
            item for item in self._registry.in_opening_order() if hasattr(item, "default_components")
        )

    @asynccontextmanager
    async def override(self, *components: Any) -> AsyncGenerator[Self]:
        """Put other components in the place of those with the same kind and name, for the block.

        They are opened and closed with the block, and seen by everything that asks the app meanwhile. Around
        `async with micro:`, what they replace is not opened at all.

        Raises:
            ComponentAlreadyRegisteredError: two of them have the same kind and name.
            SettingsValidationError: one is nothing that an app can use.
        """
        registry = Registry()
        for item in components:
            registry.add(item)
        found = registry.components()
        async with AsyncExitStack() as stack:
            for item in registry.in_opening_order():
                await stack.enter_async_context(item)
            self._overrides.append(found)
            outer = _ambient.active.get()
            _ambient.active.set(self)
            try:
                yield self
            finally:
                self._leave_ambient(outer)
                self._overrides.remove(found)

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            msg = "the app is open already"
            raise OutOfContextError(msg)
        replaced = {id(self._registry.components().get(key)) for layer in self._overrides for key in layer}
        async with AsyncExitStack() as stack:
            self._stack = stack
            stack.callback(self._closed, _ambient.active.get())
            _ambient.active.set(self)
            for item in self._registry.in_opening_order(leave_out=replaced):
                await stack.enter_async_context(item)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> bool | None:
        if self._stack is None:
            msg = "the app is not open"
            raise OutOfContextError(msg)
        return await self._stack.__aexit__(exc_type, exc, tb)

    def _found(self) -> dict[Key, Component]:
        found = self._registry.components()
        for layer in self._overrides:
            found |= layer
        return found

    def _closed(self, outer: _ambient.Registry | None) -> None:
        self._stack = None
        self._leave_ambient(outer)

    def _leave_ambient(self, outer: _ambient.Registry | None) -> None:
        # By value and not by token: a framework may close the app in another context than it opened it in.
        if _ambient.active.get() is self:
            _ambient.active.set(outer)
