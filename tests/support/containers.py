"""Servers in containers, for machines where the wheels have no server and a Docker engine answers."""

from __future__ import annotations

import contextlib
import gc
import warnings
from typing import TYPE_CHECKING

from tests.support._process import ServerUnavailableError, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testcontainers.core.container import DockerContainer


@contextlib.contextmanager
def _container(image: str, port: int, ready: str, **environment: str) -> Iterator[str]:
    container = _start(image, port, environment)
    try:
        wait_until(lambda: ready in _log(container), ready, timeout=60)
        yield f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"
    finally:
        container.stop()


def _start(image: str, port: int, environment: dict[str, str]) -> DockerContainer:
    # A client that finds no engine leaves sockets behind, which warn when they are collected.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _connect(image, port, environment)
        finally:
            gc.collect()


def _connect(image: str, port: int, environment: dict[str, str]) -> DockerContainer:
    try:
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer
    except ImportError:
        message = "no server in the wheels, and testcontainers is not installed"
        raise ServerUnavailableError(message) from None
    try:
        return DockerContainer(image).with_exposed_ports(port).with_envs(**environment).start()
    except DockerException:
        pass
    message = "no server in the wheels, and no Docker engine answers"
    raise ServerUnavailableError(message)


def _log(container: DockerContainer) -> str:
    return "".join(part.decode(errors="replace") for part in container.get_logs())


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Run Valkey; yields its address."""
    with _container("valkey/valkey:9", 6379, "Ready to accept connections") as address:
        yield f"redis://{address}/0"


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Run PostgreSQL; yields its address."""
    settings = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
    with _container("postgres:18", 5432, "PostgreSQL init process complete", **settings) as address:
        yield f"postgresql://postgres@{address}/postgres"
