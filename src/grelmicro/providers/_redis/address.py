"""Redis addresses: a URL checked before anything is opened, and the client that it stands for.

Messages name what is wrong and never repeat a part of the URL, which may be a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

_KINDS = {
    "redis": "single",
    "rediss": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
_DEFAULT_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_SENTINEL_OPTION = "sentinel_"
_SENTINEL_PATIENCE = 1.0
"""Seconds that one sentinel gets, before the next one is asked."""


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """What a URL says, in the terms of redis-py."""

    kind: str
    """`single`, `sentinel` or `cluster`."""
    options: dict[str, Any]
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    tls: bool = False

    def client(self, call_timeout: float, stack: AsyncExitStack | None = None) -> Any:
        """Build the client, pushing on `stack` what closes it. Makes no round trip."""
        closing: list[Any] = []
        if self.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in self.hosts]
            client: Any = RedisCluster(startup_nodes=nodes, ssl=self.tls, **self.options)
        elif self.kind == "sentinel":
            sentinel: Any = self._sentinel(call_timeout)
            closing += sentinel.sentinels
            client = sentinel.master_for(unquote(self.service))
        else:
            client = Redis(**self.options)
        closing.append(client)
        if stack is not None:
            for one in closing:
                stack.push_async_callback(one.aclose)
        return client

    def _sentinel(self, call_timeout: float) -> Sentinel:
        options = {k: v for k, v in self.options.items() if not k.startswith(_SENTINEL_OPTION)}
        patience = min(_SENTINEL_PATIENCE, call_timeout / 4)
        # Asking again is up to the calls; redis-py's own back-off takes longer than a call may.
        asking: dict[str, Any] = {
            "socket_timeout": patience,
            "socket_connect_timeout": patience,
            "retry": Retry(NoBackoff(), 0),
        }
        if self.tls:
            options["ssl"] = True
            asking |= {k: v for k, v in options.items() if k.startswith("ssl")}
        asking |= {
            k.removeprefix(_SENTINEL_OPTION): v
            for k, v in self.options.items()
            if k.startswith(_SENTINEL_OPTION)
        }
        return Sentinel(self.hosts, sentinel_kwargs=asking, **options)


def parse_address(url: str, *, username: str | None = None, password: str | None = None) -> Address:
    """Read a URL; `username` and `password` stand in for what it does not say.

    Raises:
        ValueError: it cannot be one; the message says what to do.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("is not a URL; write redis://host:6379/0") from None
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        raise ValueError(f"unknown scheme; use one of {', '.join(f'{scheme}://' for scheme in _KINDS)}")
    user_part, _, places = parts.netloc.rpartition("@")
    address = Address(
        kind=kind,
        options=_options(parts.query, user_part, username, password),
        hosts=() if parts.scheme == "unix" else tuple(_host(h, kind) for h in places.split(",")),
        service=_service(parts.path) if kind == "sentinel" else "",
        tls=parts.scheme.startswith("rediss"),
    )
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("needs the path of a socket: unix:///run/redis.sock")
        address.options["unix_socket_path"] = unquote(parts.path)
    else:
        _set_database(address, parts.path.strip("/").removeprefix(address.service).strip("/"))
    if kind == "single":
        _set_server(address)
    _try_out(address)
    return address


def _options(query: str, user_part: str, username: str | None, password: str | None) -> dict[str, Any]:
    try:
        # redis-py knows the types of its options.
        options = dict[str, Any](parse_url(f"redis://?{query}"))
    except ValueError:
        raise ValueError("an option in its query has a value of the wrong type") from None
    user, _, secret = user_part.partition(":")
    for name, value in (("username", unquote(user) or username), ("password", unquote(secret) or password)):
        if value:
            options.setdefault(name, value)
    return options


def _host(text: str, kind: str) -> tuple[str, int]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):  # noqa: PLR2004
        raise ValueError(
            "a port must be a number from 1 to 65535 (percent-encode special characters in a password)"
        )
    return unquote(host) or "localhost", int(port) if port else _DEFAULT_PORTS[kind]


def _service(path: str) -> str:
    service = path.strip("/").partition("/")[0]
    if not service:
        raise ValueError("needs the name of the primary: redis+sentinel://host:26379/mymaster/0")
    return service


def _set_database(address: Address, path: str) -> None:
    options = address.options
    if path and not (path.isascii() and path.isdigit()):
        raise ValueError("its path must be the number of a database, as in redis://host:6379/0")
    if path:
        options.setdefault("db", int(path))
    if address.kind == "cluster" and options.pop("db", 0) != 0:
        raise ValueError("a cluster has no other database than 0")


def _set_server(address: Address) -> None:
    if len(address.hosts) > 1:
        raise ValueError("names several hosts; use redis+sentinel:// or redis+cluster:// for that")
    for host, port in address.hosts:
        address.options.update(host=host, port=port)
    if address.tls:
        address.options["ssl"] = True


def _try_out(address: Address) -> None:
    try:
        client = address.client(call_timeout=1.0)
        if address.kind != "cluster":
            client.connection_pool.make_connection()
    except (TypeError, ValueError, RedisError):
        raise ValueError("an option in its query is unknown to redis-py, or does not fit") from None
