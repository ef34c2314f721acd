"""Checks of plain values at declaration."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from grelmicro.task.errors import TaskDeclarationError
from grelmicro.types import NonNegativeSeconds, Seconds

_SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
_NON_NEGATIVE_SECONDS: TypeAdapter[float] = TypeAdapter(NonNegativeSeconds)


def check_seconds(parameter: str, value: Any, *, zero: bool = False) -> float:
    """Return a duration in seconds.

    Raises:
        TaskDeclarationError: it is not a finite number above 0, or 0 where that is allowed.
    """
    try:
        return (_NON_NEGATIVE_SECONDS if zero else _SECONDS).validate_python(value)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        msg = f"{parameter}: {reason[0].lower()}{reason[1:]}"
        raise TaskDeclarationError(msg) from None
