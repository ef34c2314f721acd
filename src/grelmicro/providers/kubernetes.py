"""Kubernetes as a vendor: Leases behind the API server, from inside a cluster or through a kubeconfig."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

try:
    from kubernetes_asyncio.client import ApiClient
except ImportError as error:
    raise ImportError(
        'Kubernetes needs the extra "kubernetes". Install it with: pip install ".[kubernetes]"'
    ) from error

from pydantic import Field
from typing_extensions import override

from grelmicro.config import env_enabled, load_config
from grelmicro.errors import SettingsValidationError
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT
from grelmicro.providers._configured import ConfiguredProvider, ProviderConfig
from grelmicro.providers._here import Here
from grelmicro.providers._kubernetes.access import connect, describe
from grelmicro.providers._kubernetes.api import LeaseApi
from grelmicro.providers._kubernetes.collector import Collector
from grelmicro.providers._kubernetes.errors import explained
from grelmicro.providers._kubernetes.exchange import Exchange
from grelmicro.providers._kubernetes.names import Place
from grelmicro.types import Seconds

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from grelmicro.coordination.kubernetes import (
        KubernetesLeaderElectionAdapter,
        KubernetesLockAdapter,
        KubernetesScheduleAdapter,
    )

__all__ = ["KubernetesConfig", "KubernetesProvider"]

_CHECKED = "grelmicro-check"
"""The Lease that a health check asks for; it need not exist."""

Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class KubernetesConfig(ProviderConfig):
    """Which API server to use, in which namespace, and how long a call may take. Frozen; holds no secret."""

    kubeconfig: Path | None = None
    """The kubeconfig file. Without one: `KUBECONFIG`, else the cluster that this pod runs in, else
    `~/.kube/config`."""
    context: Annotated[str, Field(min_length=1)] | None = None
    """The context in the kubeconfig; without one, its current context."""
    namespace: Namespace = "default"
    """Where the Leases are."""
    call_timeout: Seconds = DEFAULT_CALL_TIMEOUT
    """Seconds that one call may take, repeated requests included. Each request may take half of that."""


class KubernetesProvider(ConfiguredProvider[KubernetesConfig]):
    """A Kubernetes API server, with settings from keywords, then `KUBERNETES_KUBECONFIG`, `_CONTEXT` etc.

    Needs the verbs get, create and update on leases.coordination.k8s.io in its namespace, and delete and list
    to collect the Leases of locks that are used no more. All calls share at most 32 connections. Runs on
    asyncio only, and on the event loop and in the process that opened it.

    Raises:
        SettingsValidationError: a setting breaks a rule (also a ValueError); the message shows no value. When
            it is opened: there is no kubeconfig, or no such context in it.
    """

    vendor: ClassVar[str] = "kubernetes"
    _config_class: ClassVar[type[KubernetesConfig]] = KubernetesConfig

    def __init__(
        self,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        namespace: str | None = None,
        call_timeout: float | None = None,
        env_prefix: str = "KUBERNETES_",
        env_load: bool | None = None,
    ) -> None:
        keywords = {
            "kubeconfig": kubeconfig,
            "context": context,
            "namespace": namespace,
            "call_timeout": call_timeout,
        }
        config = load_config(KubernetesConfig, keywords, env_prefix=env_prefix, env_load=env_load)
        self._set_up(config, read_environment=env_enabled(env_load))

    def _set_up(
        self,
        config: KubernetesConfig,
        client: ApiClient | None = None,
        *,
        own: bool = True,
        read_environment: bool = False,
    ) -> None:
        super().__init__()
        self._config = config
        self._given_client = client
        self._own = own
        self._read_environment = read_environment
        self._client: Any = None
        self._here: Here | None = None
        self._api: LeaseApi
        self._exchange: Exchange

    @classmethod
    def from_client(
        cls,
        client: ApiClient,
        own: bool = False,  # noqa: FBT001, FBT002 - like every provider's
        *,
        namespace: str | None = None,
        call_timeout: float | None = None,
    ) -> Self:
        """Build one around a `kubernetes_asyncio` client; `own` closes it.

        Raises:
            SettingsValidationError: it is no `kubernetes_asyncio.client.ApiClient`, or a setting breaks a
                rule (also a ValueError).
        """
        if not isinstance(client, ApiClient):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsValidationError(
                f"client: must be a kubernetes_asyncio.client.ApiClient, not a "
                f"{type(client).__module__}.{type(client).__name__}"
            )
        self = cls.__new__(cls)
        keywords = {"namespace": namespace, "call_timeout": call_timeout}
        config = load_config(KubernetesConfig, keywords, env_prefix="", env_load=False)
        self._set_up(config, client, own=own)
        return self

    @property
    def namespace(self) -> str:
        """Where the Leases are, unless an adapter says otherwise."""
        return self._config.namespace

    @property
    @override
    def client(self) -> Any:
        self._require_here()
        return self._client

    @property
    def exchange(self) -> Exchange:
        """What the adapters change Leases with.

        Raises:
            OutOfContextError: the provider is not open, or was opened on another loop or in another process.
        """
        self._require_here()
        return self._exchange

    @override
    def lock(self) -> KubernetesLockAdapter:
        from grelmicro.coordination.kubernetes import (  # noqa: PLC0415 - it imports this module
            KubernetesLockAdapter,
        )

        return KubernetesLockAdapter(provider=self)

    @override
    def leaderelection(self) -> KubernetesLeaderElectionAdapter:
        from grelmicro.coordination.kubernetes import (  # noqa: PLC0415 - as above
            KubernetesLeaderElectionAdapter,
        )

        return KubernetesLeaderElectionAdapter(provider=self)

    @override
    def schedule(self) -> KubernetesScheduleAdapter:
        from grelmicro.coordination.kubernetes import (  # noqa: PLC0415 - as above
            KubernetesScheduleAdapter,
        )

        return KubernetesScheduleAdapter(provider=self)

    @override
    async def check(self) -> None:
        self._require_here()
        place = Place(self.namespace, _CHECKED, "", "")
        try:
            async with asyncio.timeout(self.call_timeout), self._api.slots:
                await self._api.get(place)
        except Exception as error:
            raise explained(error, self._where, "get", place) from error

    @override
    async def __aenter__(self) -> Self:
        if self.is_open:
            self._require_here()
        return await super().__aenter__()

    @override
    async def _open(self, stack: AsyncExitStack) -> None:
        self._here = Here("KubernetesProvider")
        config = self._config
        if self._given_client is None:
            self._client = await connect(
                config.kubeconfig, config.context, read_environment=self._read_environment
            )
        else:
            self._client = self._given_client
        if self._own:
            stack.push_async_callback(self._client.close)
        self._where = describe(self._client)
        self._api = LeaseApi(self._client, self.call_timeout / 2)
        collector = Collector(self._api, self._where)
        stack.push_async_callback(collector.aclose)
        self._exchange = Exchange(
            self._api, where=self._where, call_timeout=self.call_timeout, written=collector.written
        )
        stack.push_async_callback(self._exchange.aclose)

    def _require_here(self) -> None:
        self._require_open()
        if self._here is not None:
            self._here.require()

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._given_client is not None:
            return f"{name}.from_client({type(self._given_client).__name__}, namespace={self.namespace!r})"
        parts = {"kubeconfig": self._config.kubeconfig, "context": self._config.context}
        shown = [f"{key}={str(value)!r}" for key, value in parts.items() if value is not None]
        return f"{name}({', '.join([*shown, f'namespace={self.namespace!r}'])})"
