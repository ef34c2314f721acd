"""Servers in containers, for machines where the wheels have no server and a Docker engine answers."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

from tests.support._process import ServerUnavailableError, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def _container(image: str, port: int, ready: str, **environment: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from docker.errors import DockerException
            from testcontainers.core.container import DockerContainer
        except ImportError:
            message = "no server in the wheels, and testcontainers is not installed"
            raise ServerUnavailableError(message) from None
        try:
            container = DockerContainer(image).with_exposed_ports(port).with_envs(**environment)
            container.start()
        except DockerException:
            message = "no server in the wheels, and no Docker engine answers"
            raise ServerUnavailableError(message) from None
        try:
            wait_until(
                lambda: ready in "".join(part.decode() for part in container.get_logs()), ready, timeout=60
            )
            yield f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"
        finally:
            container.stop()


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
