"""Finding an API server, and the credentials for it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from kubernetes_asyncio import config as kube_config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, incluster_config

from grelmicro.config import mask_url
from grelmicro.errors import SettingsValidationError
from grelmicro.providers._kubernetes.api import CONNECTIONS

_kube_config: Any = kube_config  # its functions are not typed in full
_DEFAULT = Path("~/.kube/config")

_WATCHES = 8
"""Connections for watches, one for each namespace that somebody waits in."""

_REFRESH = 60.0
"""Seconds after which a kubeconfig's credentials, such as those of a plugin, are asked for again."""


async def connect(kubeconfig: Path | None, context: str | None, *, read_environment: bool) -> Any:
    """Return a client for the API server, without a round trip to it.

    Raises:
        SettingsValidationError: no API server is named, or the kubeconfig cannot be used.
    """
    configuration: Any = type.__call__(Configuration)
    configuration.connection_pool_maxsize = CONNECTIONS + _WATCHES
    files = _files(kubeconfig, context, read_environment=read_environment)
    try:
        if files is None:
            _kube_config.load_incluster_config(client_configuration=configuration)
        else:
            await _load(configuration, files, context)
        client: Any = ApiClient(configuration=configuration)
    except ConfigException as error:
        source = "cluster" if files is None else "kubeconfig"
        raise SettingsValidationError(f"{source}: {error}") from error
    except Exception as error:  # noqa: BLE001 - a kubeconfig can be wrong in many ways
        # Nothing of it is shown: what cannot be parsed may be a credential.
        raise SettingsValidationError(f"kubeconfig: cannot be used ({type(error).__name__})") from None
    client.user_agent = "grelmicro"
    return client


def describe(client: Any) -> str:
    """Return what messages call the API server."""
    return f"Kubernetes at {mask_url(client.configuration.host)}"


def _files(kubeconfig: Path | None, context: str | None, *, read_environment: bool) -> str | None:
    """Return the kubeconfig, or several separated as in `KUBECONFIG`; None stands for the pod's cluster."""
    given = os.environ.get("KUBECONFIG") if read_environment else None
    if kubeconfig is None and not given and context is None and _in_cluster():
        return None
    files = str(kubeconfig or given or _DEFAULT)
    if not any(Path(path).expanduser().is_file() for path in files.split(os.pathsep)):
        raise SettingsValidationError("kubeconfig: no such file, and this is no pod of a cluster")
    return files


def _in_cluster() -> bool:
    host = os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME)
    return bool(host) and Path(incluster_config.SERVICE_TOKEN_FILENAME).is_file()


async def _load(configuration: Any, files: str, context: str | None) -> None:
    loader = await _kube_config.load_kube_config(
        config_file=files, context=context, client_configuration=configuration, persist_config=False
    )
    loop = asyncio.get_running_loop()
    refresh_at = loop.time() + _REFRESH

    async def refresh(current: Any) -> None:
        nonlocal refresh_at
        if loop.time() >= refresh_at:
            refresh_at = loop.time() + _REFRESH
            await loader.load_and_set(current)

    configuration.refresh_api_key_hook = refresh
