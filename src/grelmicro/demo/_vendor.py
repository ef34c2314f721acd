"""From a URL to a provider, and whether its server can be used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grelmicro.coordination import Coordination
from grelmicro.errors import SettingsValidationError

if TYPE_CHECKING:
    from grelmicro.providers._base import Provider


_KUBECONFIG = "kubeconfig"


def url_of(kubeconfig: str) -> str:
    """Return what stands for a kubeconfig file where a URL is expected."""
    return f"{_KUBECONFIG}://{Path(kubeconfig).absolute()}"


def provider_for(url: str) -> Provider:
    """Make the provider that a URL's scheme stands for.

    Raises:
        SettingsValidationError: the URL has another scheme, or cannot be read.
        ImportError: the vendor's extra is not installed; the message names it.
    """
    scheme, _, rest = url.partition("://")
    if scheme == _KUBECONFIG:
        from grelmicro.providers.kubernetes import KubernetesProvider  # noqa: PLC0415 - only what is needed

        return KubernetesProvider(kubeconfig=rest)
    if scheme in {"postgres", "postgresql"}:
        from grelmicro.providers.postgres import PostgresProvider  # noqa: PLC0415 - only what the URL needs

        return PostgresProvider(url)
    if scheme.partition("+")[0] in {"redis", "rediss", "unix"}:
        from grelmicro.providers.redis import RedisProvider  # noqa: PLC0415 - as above

        return RedisProvider(url)
    raise SettingsValidationError("url: unknown scheme; use redis://, rediss://, unix:// or postgresql://")


async def check(url: str, name: str) -> None:
    """Reach the server, then take and release a lock of that name there.

    Raises:
        ProviderError: the server does not answer.
        CoordinationError: it does, and does not let us have a lock.
    """
    provider = provider_for(url)
    async with provider, Coordination(provider) as coordination:
        await provider.check()
        async with coordination.lock(name):
            pass
