"""Coordinate services that run as many replicas."""

from grelmicro._app import Grelmicro
from grelmicro.errors import (
    ComponentAlreadyRegisteredError,
    ComponentNotRegisteredError,
    GrelmicroError,
    NoActiveAppError,
    OutOfContextError,
    ProviderError,
    SettingsValidationError,
)

__all__ = [
    "ComponentAlreadyRegisteredError",
    "ComponentNotRegisteredError",
    "Grelmicro",
    "GrelmicroError",
    "NoActiveAppError",
    "OutOfContextError",
    "ProviderError",
    "SettingsValidationError",
]
