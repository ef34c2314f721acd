"""Which app is active in the calling context."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from grelmicro.errors import ComponentNotRegisteredError, OutOfContextError


class Registry(Protocol):
    """The part of an app that primitives see."""

    def get(self, kind: str, name: str = "default") -> Any:
        """Return the component of that kind and name."""


active: ContextVar[Registry | None] = ContextVar("grelmicro_app", default=None)


def component(kind: str, name: str, *, wanted_by: str) -> Any:
    """Return a component of the active app.

    Raises:
        OutOfContextError: no app is active here, or the active one has no such component.
    """
    app = active.get()
    if app is None:
        msg = f"{wanted_by} found no active app. Pass backend=, or run it inside 'async with micro:'."
        raise OutOfContextError(msg)
    try:
        return app.get(kind, name)
    except ComponentNotRegisteredError as error:
        msg = f"{wanted_by} needs a {kind!r} component named {name!r}, and the active app has none: {error}"
        raise OutOfContextError(msg) from error
