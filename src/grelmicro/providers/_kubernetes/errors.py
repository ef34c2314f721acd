"""What an API server, or the way to it, can answer instead of a Lease, told apart and put into words."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from grelmicro.errors import ProviderError

if TYPE_CHECKING:
    from grelmicro.providers._kubernetes.names import Place

_RACES = frozenset({HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY})


class ApiError(Exception):
    """The API server answered that it did not do it: `status`, and what its Status object says."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""

    @property
    def is_race(self) -> bool:
        """Whether another writer may have been quicker: read again, and judge by that."""
        return self.status in _RACES

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or self.is_unclear

    @property
    def is_unclear(self) -> bool:
        """Whether a write may have taken effect all the same, or may still do so."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class NoReplyError(Exception):
    """The request was perhaps received, and no usable reply came: a write may take effect, even later."""


class UnreachableError(Exception):
    """No connection came about; the request was not sent."""


class UnreadableError(Exception):
    """The Lease is not what this library, or client-go, writes."""


_PHRASES: dict[int, str] = {
    HTTPStatus.BAD_REQUEST: "the API server finds the request malformed",
    HTTPStatus.UNAUTHORIZED: "the API server does not accept the credentials",
    HTTPStatus.NOT_FOUND: "the API server does not find the namespace",
    HTTPStatus.UNPROCESSABLE_ENTITY: "the API server finds the Lease invalid",
    HTTPStatus.TOO_MANY_REQUESTS: "the API server is busy",
}


def explained(
    error: Exception, where: str, verb: str, place: Place | None, namespace: str = ""
) -> ProviderError:
    """Return the error that a caller sees, caused by `error`."""
    namespace = place.namespace if place else namespace
    about = f" (Lease {namespace}/{place.lease})" if place else f" (namespace {namespace})"
    if isinstance(error, ApiError):
        phrase = _forbidden(verb, namespace) if error.status == HTTPStatus.FORBIDDEN else None
        phrase = phrase or _PHRASES.get(error.status) or "the API server failed"
    elif isinstance(error, UnreachableError):
        phrase = "cannot connect"
    elif isinstance(error, UnreadableError):
        phrase = "the Lease is in use for something else or cannot be read"
    else:
        phrase = "no usable reply came"
    result = ProviderError(f"{where}: {phrase}{about}: {error or type(error).__name__}")
    result.__cause__ = error.__cause__ if isinstance(error, UnreachableError) and error.__cause__ else error
    return result


def _forbidden(verb: str, namespace: str) -> str:
    return (
        f'"{verb}" is forbidden; add to a Role in namespace "{namespace}", bound to this service account, '
        f'the rule {{apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["{verb}"]}}'
    )


def status_error(status: int, body: Any, retry_after: float | None) -> ApiError:
    """Return the error for a reply that is no success."""
    match body:
        case {"kind": "Status", "reason": str() as reason, "message": str() as message}:
            return ApiError(status, reason, message, retry_after)
        case {"kind": "Status", "message": str() as message}:
            return ApiError(status, _name(status), message, retry_after)
        case _:
            return ApiError(status, _name(status), "", retry_after)


def _name(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown"
