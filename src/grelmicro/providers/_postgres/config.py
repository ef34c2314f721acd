"""The settings of the PostgreSQL provider."""

from __future__ import annotations

from typing import Annotated, Any, Self
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from grelmicro.config import mask_url
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT
from grelmicro.providers._configured import ProviderConfig
from grelmicro.types import Seconds

PLACE = frozenset({"host", "port", "db"})
"""The fields that a URL replaces."""

_SCHEMES = ("postgresql", "postgres")
_MAX_PORT = 65535


def _checked_url(url: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(url.get_secret_value())
        if parts.query:
            parse_qs(parts.query, strict_parsing=True)
    except ValueError:
        raise ValueError(
            "cannot be read; percent-encode special characters in the user, the password and the options"
        ) from None
    if parts.scheme not in _SCHEMES:
        raise ValueError("must begin with postgresql:// or postgres://")
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].partition(":")[2]
        if port and not (port.isdecimal() and 1 <= int(port) <= _MAX_PORT):
            raise ValueError(f"has a port that is not a number from 1 to {_MAX_PORT}")
    return url


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")  # noqa: TRY004 - pydantic reports ValueError only
    return value


class PostgresConfig(ProviderConfig):
    """Where PostgreSQL is, in a URL or in parts, and how it is spoken to. Frozen; shows no secret."""

    url: Annotated[SecretStr, AfterValidator(_checked_url)] | None = None
    """`postgresql://user:password@host:5432/database`, or `postgres://…`, with asyncpg's options in the query
    (`sslmode=verify-full`, `application_name=…`); several hosts are tried in their order."""
    host: str = Field(default="localhost", min_length=1)
    """A name, an address, or the directory of a Unix socket."""
    port: Annotated[int, BeforeValidator(_no_bool)] = Field(default=5432, ge=1, le=_MAX_PORT)
    """The port at the host, or in the name of its Unix socket."""
    db: str | None = Field(default=None, min_length=1)
    """The database; the user's own when left out."""
    user: str | None = Field(default=None, min_length=1)
    """Used when the URL names none."""
    password: SecretStr | None = None
    """Used when the URL holds none."""
    call_timeout: Seconds = DEFAULT_CALL_TIMEOUT
    """Seconds that one call may take, connecting included."""
    pool_max_size: Annotated[int, BeforeValidator(_no_bool)] = Field(default=10, ge=1)
    """How many connections may be open at the same time."""
    pool_idle_timeout: Seconds = 300.0
    """Seconds after which an unused connection is closed."""
    transaction_pooling: bool | None = None
    """Whether a pooler such as pgbouncer gives each transaction another server connection, so that named
    prepared statements cannot be used. None looks for one on each new connection."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.url is not None and PLACE & self.model_fields_set:
            raise ValueError("give either url, or host, port and db")
        return self

    @property
    def connect_arguments(self) -> dict[str, Any]:
        """The same in asyncpg's terms."""
        password = None if self.password is None else self.password.get_secret_value()
        if self.url is None:
            place: dict[str, Any] = {"host": self.host, "port": self.port, "database": self.db}
            return place | {"user": self.user, "password": password}
        url = self.url.get_secret_value()
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        arguments: dict[str, Any] = {"dsn": url}
        if not (parts.username or "user" in options):
            arguments["user"] = self.user
        if not (parts.password or "password" in options):
            arguments["password"] = password
        return arguments

    @property
    def masked_url(self) -> str:
        """The URL without its password and options."""
        if self.url is not None:
            return mask_url(self.url.get_secret_value()).partition("?")[0]
        user = f"{quote(self.user, safe='')}{':***' if self.password else ''}@" if self.user else ""
        return f"postgresql://{user}{quote(self.host, safe=':')}:{self.port}/{quote(self.db or '')}"
