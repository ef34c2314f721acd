"""Requests about Leases, each bounded, with replies that are what they should be."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

from grelmicro.providers._kubernetes.clock import ServerClock
from grelmicro.providers._kubernetes.errors import (
    ApiError,
    NoReplyError,
    UnreachableError,
    status_error,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping

    from grelmicro.providers._kubernetes.names import Place

CONNECTIONS = 32
"""How many requests are under way at a time; others wait their turn."""

_COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
_UNBOUNDED = aiohttp.ClientTimeout()


class LeaseApi:
    """The Lease resource, through a `kubernetes_asyncio` client.

    Every request ends within `request_timeout` seconds of being sent. They raise `ApiError`, `NoReplyError`
    or `UnreachableError`, and never take a reply that they do not understand for an answer.
    """

    def __init__(self, client: Any, request_timeout: float) -> None:
        self._client = client
        self._request_timeout = request_timeout
        self.slots = asyncio.Semaphore(CONNECTIONS)
        """What whoever makes requests must hold, for as many as belong together."""
        self._loop = asyncio.get_running_loop()
        self._progress = self._loop.time()
        self.clock = ServerClock()

    @property
    def is_congested(self) -> bool:
        """Whether requests wait for others that are being answered."""
        return self.slots.locked() and self._loop.time() < self._progress + self._request_timeout

    async def get(self, place: Place) -> dict[str, Any] | None:
        """Return the Lease, or None when the server says that there is none."""
        try:
            return _lease(await self._request("GET", place.namespace, place.lease))
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND and f'"{place.lease}"' in error.message:
                return None
            raise

    async def create(self, place: Place, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a Lease that does not exist (409 when it does)."""
        return _lease(await self._request("POST", place.namespace, body=body))

    async def replace(self, place: Place, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the Lease of the resourceVersion in `body` (409 or 422 when that is no more the latest)."""
        return _lease(await self._request("PUT", place.namespace, place.lease, body=body))

    async def delete(self, namespace: str, lease: str, *, uid: str, version: str) -> None:
        """Delete the Lease if it is exactly that one (409 when not, 404 when it is gone)."""
        body = {"preconditions": {"uid": uid, "resourceVersion": version}}
        await self._request("DELETE", namespace, lease, body=body)

    async def page(
        self, namespace: str, *, labels: str = "", fields: str = "", limit: int = 0, after: str = ""
    ) -> dict[str, Any]:
        """Return a LeaseList: at most `limit` Leases, `after` being the token of the page before."""
        query = [("labelSelector", labels), ("fieldSelector", fields)]
        query += [("limit", str(limit or "")), ("continue", after)]
        reply = await self._request("GET", namespace, query=[pair for pair in query if pair[1]])
        match reply:
            case {"kind": "LeaseList", "metadata": {"resourceVersion": str()}, "items": list()}:
                return dict(reply)
            case _:
                raise NoReplyError("the reply is no LeaseList")

    @asynccontextmanager
    async def watch(
        self, namespace: str, *, labels: str = "", fields: str = "", version: str, seconds: float
    ) -> AsyncGenerator[AsyncGenerator[tuple[str, dict[str, Any]]]]:
        """Give what happens after `version` as (type, object), until the server ends it after `seconds`.

        It is up once the block is entered.
        """
        query = [("labelSelector", labels), ("fieldSelector", fields)]
        query = [pair for pair in query if pair[1]]
        query += [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", version)]
        query += [("timeoutSeconds", str(math.ceil(seconds)))]
        end = self._loop.time() + math.ceil(seconds) + self._request_timeout
        with _failures():
            async with asyncio.timeout(self._request_timeout):
                response = await self._send("GET", namespace, query=query)
            async with response:
                if response.status != HTTPStatus.OK:
                    raise status_error(response.status, _parsed(await response.read()), None)
                try:
                    yield _events(response, end)
                finally:
                    # Over TLS, closing would wait for the server's farewell, after the loop has gone perhaps.
                    if response.connection is not None and response.connection.transport is not None:
                        response.connection.transport.abort()

    async def _request(
        self,
        method: str,
        namespace: str,
        lease: str | None = None,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        with _failures():
            async with asyncio.timeout(self._request_timeout):
                response = await self._send(method, namespace, lease, query=query, body=body)
                async with response:
                    data = await response.read()
        self.clock.note(response.headers.get("Date"))
        reply = _parsed(data)
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise status_error(response.status, reply, _seconds(response.headers.get("Retry-After")))
        self._progress = self._loop.time()
        return reply

    async def _send(
        self,
        method: str,
        namespace: str,
        lease: str | None = None,
        *,
        query: list[tuple[str, str]] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> aiohttp.ClientResponse:
        path = {"namespace": namespace} if lease is None else {"namespace": namespace, "name": lease}
        response: aiohttp.ClientResponse = await self._client.call_api(
            _COLLECTION if lease is None else _COLLECTION + "/{name}",
            method,
            path_params=path,
            query_params=query or [],
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=_UNBOUNDED,
        )
        return response


@contextmanager
def _failures() -> Generator[None]:
    """Tell apart what can go wrong on the way."""
    try:
        yield
    except TimeoutError as error:
        raise NoReplyError("none in time") from error
    except aiohttp.ClientConnectorError as error:
        raise UnreachableError(str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise NoReplyError(str(error)) from error


async def _events(response: aiohttp.ClientResponse, end: float) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    while True:
        async with asyncio.timeout_at(end):
            line = await response.content.readline()
        if not line:
            return
        match _parsed(line):
            case {"type": str() as kind, "object": {} as subject}:
                yield kind, dict(subject)
            case _:
                raise NoReplyError("the watch sent something that is no event")


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _lease(reply: Any) -> dict[str, Any]:
    match reply:
        case {"kind": "Lease", "metadata": {"uid": str(), "resourceVersion": str()}}:
            return dict(reply)
        case _:
            raise NoReplyError("the reply is no Lease")


def _seconds(header: str | None) -> float | None:
    """Return a Retry-After in seconds; the form with a date is not used by API servers."""
    try:
        return max(float(header or ""), 0.0)
    except ValueError:
        return None
