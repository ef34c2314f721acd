"""Errors of the app, the registry and the settings; coordination errors extend the same root.

GrelmicroError
├── SettingsValidationError            a setting breaks a rule (also ValueError)
├── OutOfContextError                  used where nothing is bound or open (also RuntimeError)
├── NoActiveAppError                   no app is active here (also RuntimeError)
├── ComponentNotRegisteredError        nothing of that kind and name (also LookupError, AttributeError)
├── ComponentAlreadyRegisteredError    two things under one kind and name (also ValueError)
└── ProviderError                      a vendor cannot be reached or refuses (also ConnectionError)
"""

from __future__ import annotations


class GrelmicroError(Exception):
    """Root of every error that this library defines."""


class SettingsValidationError(GrelmicroError, ValueError):
    """A setting breaks a rule.

    The message names the field and the rule and never repeats the rejected value, which may be a secret.
    """


class OutOfContextError(GrelmicroError, RuntimeError):
    """Something was used before it was opened, after it was closed, or where no app provides it."""


class NoActiveAppError(GrelmicroError, RuntimeError):
    """No `Grelmicro` app is active in the calling context."""


class ComponentNotRegisteredError(GrelmicroError, LookupError, AttributeError):
    """The app holds no component of the requested kind and name."""


class ComponentAlreadyRegisteredError(GrelmicroError, ValueError):
    """The app already holds a component of this kind and name."""


class ProviderError(GrelmicroError, ConnectionError):
    """The vendor behind a provider cannot be reached, or refuses the request."""
