"""What an app holds, by kind and name, and in which order it opens."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from grelmicro.errors import (
    ComponentAlreadyRegisteredError,
    ComponentNotRegisteredError,
    SettingsValidationError,
)

Key = tuple[str, str]


@runtime_checkable
class Component(Protocol):
    """Something that an app finds by kind and name, opens and closes.

    It may list the providers it needs in `providers`; they are open while it is.
    """

    kind: str

    @property
    def name(self) -> str:
        """The name among those of its kind."""
        ...

    async def __aenter__(self) -> Any:
        """Open."""
        ...

    async def __aexit__(self, *exc_info: object) -> Any:
        """Close."""
        ...


class Registry:
    """The items of an app.

    A provider that stands alone implies components, which give way to explicit ones of the same kind and
    name.
    """

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._explicit: dict[Key, Component] = {}
        self._wrapped: set[Key] = set()
        self._implied: list[tuple[Any, Sequence[Component]]] = []

    def add(self, item: Any) -> None:
        """Take a component, a provider, an adapter, any async context manager, or a class of these.

        Raises:
            ComponentAlreadyRegisteredError: another component has its kind and name.
            SettingsValidationError: it is none of these.
        """
        item = instantiated(item)
        if isinstance(item, Component):
            self._add_component(item, wrapped=False)
        elif hasattr(item, "default_components"):
            if any(item is provider for provider, _ in self._implied):
                return
            self._implied.append((item, ()))
            self._items.append(item)
        elif hasattr(item, "as_component"):
            self._add_component(item.as_component(), wrapped=True)
        elif hasattr(item, "__aenter__") and hasattr(item, "__aexit__"):
            self._items.append(item)
        else:
            msg = (
                f"uses: cannot use a {type(item).__name__}: expected a provider, a component such as "
                "Coordination(...), an adapter, or an async context manager"
            )
            raise SettingsValidationError(msg)

    def components(self) -> dict[Key, Component]:
        """Return all components by kind and name.

        Raises:
            ComponentAlreadyRegisteredError: two providers that stand alone imply the same component.
        """
        found = dict(self._explicit)
        implied: dict[Key, Component] = {}
        for index, (provider, components) in enumerate(self._implied):
            if not components:
                components = tuple(provider.default_components())  # noqa: PLW2901 - made once, then kept
                self._implied[index] = (provider, components)
            for component in components:
                key = (component.kind, component.name)
                if key in self._explicit:
                    continue
                if key in implied:
                    msg = (
                        f"two providers could serve the {key[0]!r} component named {key[1]!r}; say which by "
                        "registering the component itself, for example Coordination(provider)"
                    )
                    raise ComponentAlreadyRegisteredError(msg)
                implied[key] = component
        return found | implied

    def in_opening_order(self, *, leave_out: Container[int] = ()) -> Iterator[Any]:
        """Yield everything to open but the components with these ids: each provider once, before its users.

        A provider that only components left out would use stays closed too. What says `opens_last = True`
        comes after everything else, and so is closed before it.
        """
        chosen = {id(component) for component in self.components().values()}
        seen: set[int] = set()
        implied = {id(provider): made for provider, made in self._implied}
        for item in sorted(self._items, key=lambda item: getattr(item, "opens_last", False)):
            if id(item) in leave_out:
                continue
            parts = [*getattr(item, "providers", ()), item]
            parts += [made for made in implied.get(id(item), ()) if id(made) in chosen]
            for part in parts:
                if id(part) not in seen and id(part) not in leave_out:
                    seen.add(id(part))
                    yield part

    def _add_component(self, component: Component, *, wrapped: bool) -> None:
        key = (component.kind, component.name)
        if key not in self._explicit:
            self._explicit[key] = component
            self._items.append(component)
            if wrapped:
                self._wrapped.add(key)
            return
        if wrapped and key in self._wrapped:  # a lock adapter, then an election adapter: one component
            merged = self._explicit[key].merged(component)  # type: ignore[attr-defined]
            self._items[self._items.index(self._explicit[key])] = merged
            self._explicit[key] = merged
            return
        msg = f"a {key[0]!r} component named {key[1]!r} is already registered; give one of them another name="
        raise ComponentAlreadyRegisteredError(msg)


def find(components: dict[Key, Component], kind: str, name: str) -> Component:
    """Return a component.

    Raises:
        ComponentNotRegisteredError: there is none; the message lists what there is.
    """
    try:
        return components[kind, name]
    except KeyError:
        have = ", ".join(f"{k} ({n})" for k, n in sorted(components)) or "nothing"
        msg = f"no {kind!r} component named {name!r} is registered; this app has: {have}"
        raise ComponentNotRegisteredError(msg) from None


def instantiated(item: Any) -> Any:
    """Return `item`, or an instance when it is a class.

    Raises:
        SettingsValidationError: the class needs arguments.
    """
    if not isinstance(item, type):
        return item
    try:
        return item()
    except TypeError as error:
        msg = f"{item.__name__} cannot be made without arguments; pass an instance"
        raise SettingsValidationError(msg) from error
