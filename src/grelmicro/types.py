"""Value types shared by configurations and signatures."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

__all__ = ["MAX_SECONDS", "Jitter", "NonNegativeSeconds", "Seconds"]

MAX_SECONDS = 2**31 - 1
"""The longest duration: what a Kubernetes Lease can store (a signed 32-bit number of seconds, 68 years)."""


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        msg = "must be a number, not a boolean"
        raise ValueError(msg)  # noqa: TRY004 - pydantic reports ValueError only
    return value


Seconds = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
"""A duration in seconds: a finite number, more than 0 and at most `MAX_SECONDS`."""

NonNegativeSeconds = Annotated[
    float, BeforeValidator(_no_bool), Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)
]
"""A duration in seconds that may be 0."""

Jitter = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, lt=1, allow_inf_nan=False)]
"""A spread factor in [0, 1): a sleep becomes `interval * uniform(1 - jitter, 1 + jitter)`."""
