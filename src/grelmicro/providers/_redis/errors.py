"""What can go wrong on the way to a Redis server, told apart and put into words."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from grelmicro.errors import ProviderError

REPLIES = (ResponseError, BusyLoadingError, AuthenticationError)
"""Errors that are a server's reply to one command; any other means that the connection is lost."""


class LostError(Exception):
    """The connection broke while a reply was outstanding: whether the request took effect is unknown."""


class UnreachableError(Exception):
    """No connection came about; the request was not sent."""


class NoReplyError(Exception):
    """The request's time was over before its reply came."""


_MEANINGS: tuple[tuple[type[Exception], str], ...] = (
    (LostError, "the connection was lost before the reply came"),
    (UnreachableError, "cannot connect"),
    (NoReplyError, "no reply within call_timeout"),
    (OutOfMemoryError, "the server is out of memory (maxmemory) and takes no writes"),
    (ReadOnlyError, "the server is read-only, a replica perhaps"),
    (BusyLoadingError, "the server is still loading its data"),
    (AuthenticationError, "the server wants other credentials"),
    (NoPermissionError, "the user lacks a permission (ACL)"),
)

_WORDS = (
    ("WRONGTYPE", "the key is in use for something else"),
    ("FOREIGN", "the key is in use for something else"),
    ("CORRUPT", "the key holds a record that cannot be read"),
)


def explained(error: Exception, where: str, key: bytes) -> ProviderError:
    """Return the error that a caller sees, with `error` or what caused it as its cause."""
    about = f" (key {key.decode()!r})" if key else ""
    meaning = next((text for kind, text in _MEANINGS if isinstance(error, kind)), None)
    if meaning is None:
        meaning = next((text for word, text in _WORDS if word in str(error)), "refused")
    cause = error.__cause__ if isinstance(error, LostError | UnreachableError) else error
    detail = f": {str(cause).rstrip('.')}" if cause is not None and str(cause) else ""
    result = ProviderError(f"{where}: {meaning}{about}{detail}")
    result.__cause__ = cause
    return result
