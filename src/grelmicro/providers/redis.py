"""Redis and Valkey as a vendor: one server, one that Sentinel names, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

try:
    from redis.asyncio import Redis, RedisCluster
except ImportError as error:
    raise ImportError('Redis needs the extra "redis". Install it with: pip install ".[redis]"') from error

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from typing_extensions import override

from grelmicro.config import load_config, mask_url
from grelmicro.errors import ProviderError, SettingsValidationError
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT
from grelmicro.providers._configured import ConfiguredProvider, ProviderConfig, load_addressed
from grelmicro.providers._here import Here
from grelmicro.providers._redis.address import Address, parse_address
from grelmicro.providers._redis.cluster import ClusterDispatcher
from grelmicro.providers._redis.dispatch import Dispatcher, SingleDispatcher
from grelmicro.providers._redis.subscription import RedisSubscription
from grelmicro.types import Seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from grelmicro.coordination.redis import (
        RedisLeaderElectionAdapter,
        RedisLockAdapter,
        RedisScheduleAdapter,
    )

__all__ = ["RedisConfig", "RedisProvider"]

_PLACE = frozenset({"host", "port", "db"})
_CREDENTIALS = frozenset({"username", "password"})


def _checked_url(url: SecretStr) -> SecretStr:
    parse_address(url.get_secret_value())
    return url


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")  # noqa: TRY004 - pydantic reports ValueError only
    return value


class RedisConfig(ProviderConfig):
    """Where Redis is, in a URL or in parts, and how long a call may take. Frozen; shows no secret."""

    url: Annotated[SecretStr, AfterValidator(_checked_url)] | None = None
    """`redis://`, `rediss://` (TLS), `unix://`, `redis+sentinel://h1:26379,h2:26379/mymaster/0` or
    `redis+cluster://h1:6379,h2:6379` (`rediss+…` with TLS), with redis-py's options in the query; those of
    the sentinels themselves begin with `sentinel_`, as `sentinel_password`."""
    host: str = Field(default="localhost", min_length=1)
    """A name or an address."""
    port: Annotated[int, BeforeValidator(_no_bool)] = Field(default=6379, ge=1, le=65535)
    """The port at the host."""
    db: Annotated[int, BeforeValidator(_no_bool)] = Field(default=0, ge=0)
    """The number of the database."""
    username: str | None = None
    """Used when the URL names none."""
    password: SecretStr | None = None
    """Used when the URL holds none."""
    call_timeout: Seconds = DEFAULT_CALL_TIMEOUT
    """Seconds that one call may take, connecting included."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.url is not None and _PLACE & self.model_fields_set:
            raise ValueError("give either url, or host, port and db")
        return self

    @property
    def address(self) -> Address:
        """The same in redis-py's terms."""
        password = None if self.password is None else self.password.get_secret_value()
        if self.url is not None:
            return parse_address(self.url.get_secret_value(), username=self.username, password=password)
        options = {"username": self.username, "password": password}
        options = {name: value for name, value in options.items() if value}
        place: dict[str, Any] = {"host": self.host, "port": self.port, "db": self.db}
        return Address(kind="single", options=place | options)

    @property
    def masked_url(self) -> str:
        """The URL without its password and options."""
        if self.url is None:
            return f"redis://{self.host}:{self.port}/{self.db}"
        return mask_url(self.url.get_secret_value()).partition("?")[0]


class RedisProvider(ConfiguredProvider[RedisConfig]):
    """Redis or Valkey, with settings from keywords, then `REDIS_URL`, or `REDIS_HOST`, `REDIS_PORT` etc.

    A URL outdoes the variables for its parts. All calls share one connection (in a cluster: one to each
    primary in use) beside those of the client's own pool. It is made by the first call, replaced when it is
    lost or silent for `call_timeout`, and closed once every call on it has ended. Runs on asyncio only, and
    on the event loop and in the process that opened it.

    Raises:
        SettingsValidationError: a setting breaks a rule (also a ValueError); the message shows no value.
    """

    vendor: ClassVar[str] = "redis"
    _config_class: ClassVar[type[RedisConfig]] = RedisConfig

    def __init__(
        self,
        url: str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        db: int | None = None,
        username: str | None = None,
        password: str | None = None,
        call_timeout: float | None = None,
        env_prefix: str = "REDIS_",
        env_load: bool | None = None,
    ) -> None:
        keywords = {
            "url": url,
            "host": host,
            "port": port,
            "db": db,
            "username": username,
            "password": password,
            "call_timeout": call_timeout,
        }
        self._set_up(
            load_addressed(
                RedisConfig,
                keywords,
                place=_PLACE,
                credentials=_CREDENTIALS,
                env_prefix=env_prefix,
                env_load=env_load,
            )
        )

    def _set_up(self, config: RedisConfig, client: Any = None, *, own: bool = True) -> None:
        super().__init__()
        self._config = config
        self._given_client = client
        self._own = own
        self._client: Any = None
        self._dispatcher: Dispatcher
        self._subscriptions: list[RedisSubscription] = []
        self._here: Here | None = None
        self._where = f"Redis at {config.masked_url}" if client is None else "Redis"

    @classmethod
    def from_client(
        cls,
        client: Redis | RedisCluster,
        own: bool = False,  # noqa: FBT001, FBT002 - like every provider's
        *,
        call_timeout: float = DEFAULT_CALL_TIMEOUT,
    ) -> Self:
        """Build one around a client, whatever its pool, encoding, RESP version and retries; `own` closes it.

        Connections are made as the client makes them, and not counted by its pool.

        Raises:
            SettingsValidationError: it is no client of `redis.asyncio` (also a ValueError).
        """
        if not isinstance(client, Redis | RedisCluster):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsValidationError(
                f"client: must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not a "
                f"{type(client).__module__}.{type(client).__name__}"
            )
        self = cls.__new__(cls)
        config = load_config(RedisConfig, {"call_timeout": call_timeout}, env_prefix="", env_load=False)
        self._set_up(config, client, own=own)
        return self

    @property
    @override
    def client(self) -> Any:
        self._require_here()
        return self._client

    @property
    def dispatcher(self) -> Dispatcher:
        """What the adapters send their calls with.

        Raises:
            OutOfContextError: the provider is not open, or was opened on another loop or in another process.
        """
        self._require_here()
        return self._dispatcher

    @override
    def lock(self) -> RedisLockAdapter:
        from grelmicro.coordination.redis import RedisLockAdapter  # noqa: PLC0415 - it imports this module

        return RedisLockAdapter(provider=self)

    @override
    def leaderelection(self) -> RedisLeaderElectionAdapter:
        from grelmicro.coordination.redis import RedisLeaderElectionAdapter  # noqa: PLC0415 - as above

        return RedisLeaderElectionAdapter(provider=self)

    @override
    def schedule(self) -> RedisScheduleAdapter:
        from grelmicro.coordination.redis import RedisScheduleAdapter  # noqa: PLC0415 - as above

        return RedisScheduleAdapter(provider=self)

    @override
    async def check(self) -> None:
        reply = await self.dispatcher.command(b"PING").future
        if reply != b"PONG":
            raise ProviderError(f"{self._where}: PING was not answered with PONG")

    @override
    async def __aenter__(self) -> Self:
        if self.is_open:
            self._require_here()
        return await super().__aenter__()

    @override
    async def _open(self, stack: AsyncExitStack) -> None:
        self._here = Here("RedisProvider")
        if self._given_client is None:
            self._client = self._config.address.client(self.call_timeout, stack)
        else:
            self._client = self._given_client
            if self._own:
                stack.push_async_callback(self._client.aclose)
        dispatcher = ClusterDispatcher if isinstance(self._client, RedisCluster) else SingleDispatcher
        self._dispatcher = dispatcher(self._client, self._where, self.call_timeout)
        stack.push_async_callback(self._dispatcher.aclose)
        stack.push_async_callback(self._stop_listening)

    def subscribe(
        self, channels: Sequence[str], on_message: Callable[[str], object], on_change: Callable[[], object]
    ) -> RedisSubscription:
        """Listen to channels, the first of them nobody else's, until the provider closes."""
        subscription = RedisSubscription(self.dispatcher, channels, on_message, on_change)
        self._subscriptions.append(subscription)
        return subscription

    async def _stop_listening(self) -> None:
        while self._subscriptions:
            await self._subscriptions.pop().aclose()

    def _require_here(self) -> None:
        self._require_open()
        if self._here is not None:
            self._here.require()

    def __repr__(self) -> str:
        if self._given_client is not None:
            return f"{type(self).__name__}.from_client({type(self._given_client).__name__})"
        return f"{type(self).__name__}({self._config.masked_url!r})"
