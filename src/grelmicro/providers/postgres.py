"""PostgreSQL as a vendor, spoken to through asyncpg."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Self

try:
    import asyncpg
except ImportError as error:
    raise ImportError(
        'PostgreSQL needs the extra "postgres". Install it with: pip install ".[postgres]"'
    ) from error

from typing_extensions import override

from grelmicro.config import load_config
from grelmicro.errors import OutOfContextError, SettingsValidationError
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT
from grelmicro.providers._configured import ConfiguredProvider, load_addressed
from grelmicro.providers._postgres.config import PLACE, PostgresConfig
from grelmicro.providers._postgres.connections import Connections
from grelmicro.providers._postgres.resets import Resets
from grelmicro.providers._postgres.sending import cannot
from grelmicro.providers._postgres.subscription import PostgresSubscription, borrowed_ear, own_ear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager, AsyncExitStack

    from grelmicro.coordination.postgres import (
        PostgresLeaderElectionAdapter,
        PostgresLockAdapter,
        PostgresScheduleAdapter,
    )
    from grelmicro.providers._postgres.connections import Pool
    from grelmicro.providers._postgres.subscription import Ear

__all__ = ["PostgresConfig", "PostgresProvider"]

_CREDENTIALS = frozenset({"user", "password"})


class PostgresProvider(ConfiguredProvider[PostgresConfig]):
    """PostgreSQL. Settings come from keywords, then `POSTGRES_URL`, or `POSTGRES_HOST`, `POSTGRES_PORT` etc.

    A keyword or variable with a URL outdoes the variables for its parts. Its connections, at most
    `pool_max_size`, are made when calls need them, and replaced when lost or silent for `call_timeout`. No
    session keeps state, so it works behind pgbouncer in transaction mode. Runs on asyncio only, and on the
    event loop and in the process that opened it.

    Raises:
        SettingsValidationError: a setting breaks a rule (also a ValueError); its value is never shown.
    """

    vendor: ClassVar[str] = "postgres"
    _config_class: ClassVar[type[PostgresConfig]] = PostgresConfig

    def __init__(
        self,
        url: str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        db: str | None = None,
        user: str | None = None,
        password: str | None = None,
        call_timeout: float | None = None,
        pool_max_size: int | None = None,
        pool_idle_timeout: float | None = None,
        transaction_pooling: bool | None = None,
        env_prefix: str = "POSTGRES_",
        env_load: bool | None = None,
    ) -> None:
        keywords = {
            "url": url,
            "host": host,
            "port": port,
            "db": db,
            "user": user,
            "password": password,
            "call_timeout": call_timeout,
            "pool_max_size": pool_max_size,
            "pool_idle_timeout": pool_idle_timeout,
            "transaction_pooling": transaction_pooling,
        }
        self._set_up(
            load_addressed(
                PostgresConfig,
                keywords,
                place=PLACE,
                credentials=_CREDENTIALS,
                env_prefix=env_prefix,
                env_load=env_load,
            )
        )

    def _set_up(self, config: PostgresConfig, pool: Pool | None = None, *, own: bool = True) -> None:
        super().__init__()
        self._config = config
        self._given_pool = pool
        self._own = own
        self._connections: Connections | None = None
        self._subscriptions: list[PostgresSubscription] = []
        self._where = f"PostgreSQL at {config.masked_url}" if pool is None else "PostgreSQL"

    @classmethod
    def from_client(
        cls,
        client: Pool,
        own: bool = False,  # noqa: FBT001, FBT002 - like every provider's
        *,
        call_timeout: float = DEFAULT_CALL_TIMEOUT,
    ) -> Self:
        """Build one around a pool, whatever its settings; `own` closes it.

        Connections are taken from the pool for one statement or a few and given back. When one was lost, all
        that the pool then has are renewed as they are next taken.

        Raises:
            SettingsValidationError: it is no asyncpg pool (also a ValueError).
        """
        if not isinstance(client, asyncpg.Pool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsValidationError(
                f"client: must be an asyncpg.Pool, not a {type(client).__module__}.{type(client).__name__}"
            )
        self = cls.__new__(cls)
        config = load_config(PostgresConfig, {"call_timeout": call_timeout}, env_prefix="", env_load=False)
        self._set_up(config, client, own=own)
        return self

    @property
    @override
    def client(self) -> Pool:
        return self.connections.pool

    @property
    def connections(self) -> Connections:
        """What the adapters send their statements with.

        Raises:
            OutOfContextError: the provider is not open, or was opened on another event loop or in another
                process.
        """
        connections = self._connections
        if connections is None:
            self._require_open()
            raise OutOfContextError("PostgresProvider is being opened")
        connections.require_here()
        return connections

    @override
    def lock(self) -> PostgresLockAdapter:
        from grelmicro.coordination.postgres import PostgresLockAdapter  # noqa: PLC0415 - it imports this module

        return PostgresLockAdapter(provider=self)

    @override
    def leaderelection(self) -> PostgresLeaderElectionAdapter:
        from grelmicro.coordination.postgres import PostgresLeaderElectionAdapter  # noqa: PLC0415 - as above

        return PostgresLeaderElectionAdapter(provider=self)

    @override
    def schedule(self) -> PostgresScheduleAdapter:
        from grelmicro.coordination.postgres import PostgresScheduleAdapter  # noqa: PLC0415 - as above

        return PostgresScheduleAdapter(provider=self)

    @override
    async def check(self) -> None:
        connections = self.connections
        try:
            async with asyncio.timeout(self.call_timeout):
                await connections.run("SELECT 1")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise cannot("does not answer", self._where, error) from error

    @override
    async def __aenter__(self) -> Self:
        if self._connections is not None:
            self._connections.require_here()
        return await super().__aenter__()

    @override
    async def _open(self, stack: AsyncExitStack) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise OutOfContextError("PostgresProvider runs on asyncio only") from None
        config = self._config
        pool = self._given_pool
        resets: Resets | None = None
        if pool is None:
            resets = Resets()
            pool = asyncpg.create_pool(
                **config.connect_arguments,
                timeout=config.call_timeout,
                min_size=0,
                max_size=config.pool_max_size,
                max_inactive_connection_lifetime=config.pool_idle_timeout,
                reset=resets,
            )
            await pool  # makes no connection yet
        elif getattr(pool, "_loop", loop) is not loop:
            raise OutOfContextError(
                "the pool was made on another event loop than PostgresProvider is opened on"
            )
        if self._own:
            stack.push_async_callback(self._close, pool)
        connections = Connections(
            pool,
            resets=resets,
            call_timeout=config.call_timeout,
            transaction_pooling=config.transaction_pooling,
            where=self._where,
        )
        stack.push_async_callback(connections.aclose)
        stack.push_async_callback(self._stop_listening)
        self._connections = connections
        stack.callback(self._forget)

    def subscribe(
        self, channels: Sequence[str], on_message: Callable[[str], object], on_change: Callable[[], object]
    ) -> PostgresSubscription:
        """Listen to channels, the first of them nobody else's, until the provider closes."""
        connections, config, pool = self.connections, self._config, self._given_pool

        def ear() -> AbstractAsyncContextManager[Ear]:
            if pool is None:
                return own_ear(config.connect_arguments, config.call_timeout)
            return borrowed_ear(pool, config.call_timeout)

        subscription = PostgresSubscription(connections, ear, channels, on_message, on_change)
        self._subscriptions.append(subscription)
        return subscription

    async def _stop_listening(self) -> None:
        while self._subscriptions:
            await self._subscriptions.pop().aclose()

    def _forget(self) -> None:
        self._connections = None

    async def _close(self, pool: Pool) -> None:
        try:
            async with asyncio.timeout(min(self.call_timeout, 1.0)):
                await pool.close()
        except TimeoutError:
            pool.terminate()

    def __repr__(self) -> str:
        if self._given_pool is not None:
            return f"{type(self).__name__}.from_client({type(self._given_pool).__name__})"
        return f"{type(self).__name__}({self._config.masked_url!r})"
