"""Servers for the whole test session, and the summary of the backends that ran."""

from __future__ import annotations

import os
import uuid
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.support import containers
from tests.support.kube.server import GivenKube, KubeServer
from tests.support.kube.strict import StrictKube
from tests.support.servers import (
    PgBouncer,
    PostgresServer,
    ServerUnavailableError,
    TlsFront,
    ValkeyCluster,
    ValkeySentinel,
    ValkeyServer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

T = TypeVar("T")

VARIANTS = (
    *("memory", "redis", "sentinel", "cluster", "tls", "postgres", "pgbouncer"),
    *("kubernetes", "kube-apiserver"),
)
VARIANT_OF_FIXTURE = {
    "redis_url": "redis",
    "redis_server": "redis",
    "own_redis": "redis",
    "redis_tls": "tls",
    "sentinel": "sentinel",
    "cluster": "cluster",
    "postgres_url": "postgres",
    "postgres_server": "postgres",
    "postgres_database": "postgres",
    "own_postgres": "postgres",
    "pgbouncer": "pgbouncer",
    "pgbouncer_url": "pgbouncer",
    "strict_kube": "kubernetes",
    "own_strict_kube": "kubernetes",
    "kube_server": "kube-apiserver",
    "kube_api": "kube-apiserver",
}

_variants_of = pytest.StashKey[frozenset[str]]()
_outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
_servers: dict[str, str] = {}
_skip_reasons: dict[str, str] = {"kube-apiserver": "make test-kube asks for it"}


def _serve(
    variant: str, make: Callable[[], AbstractContextManager[T]], describe: Callable[[T], str]
) -> Iterator[T]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(make())
        except ServerUnavailableError as error:
            pytest.skip(str(error))
        _servers.setdefault(variant, describe(server))
        yield server


def _valkey_version(server: ValkeyServer) -> str:
    return f"Valkey {server.info()['valkey_version']}"


def _postgres_version(server: PostgresServer) -> str:
    return f"PostgreSQL {server.execute('SHOW server_version')[0]}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio unless they ask for another loop."""
    return "asyncio"


@pytest.fixture
def unique() -> str:
    """Return a name prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[ValkeyServer]:
    """Our own Valkey, shared by the session."""
    yield from _serve("redis", ValkeyServer, _valkey_version)


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the Redis to test with: given, our own, or in a container."""
    yield from _url(request, "redis", "REDIS_URL", "redis_server", containers.redis)


@pytest.fixture
def own_redis() -> Iterator[ValkeyServer]:
    """Return a Valkey that this test may break."""
    yield from _serve("redis", ValkeyServer, _valkey_version)


@pytest.fixture(scope="session")
def redis_tls(redis_server: ValkeyServer) -> Iterator[TlsFront]:
    """Return TLS in front of our own Valkey."""
    yield from _serve("tls", lambda: TlsFront(redis_server.address), lambda _: "through a terminating proxy")


@pytest.fixture(scope="session")
def sentinel() -> Iterator[ValkeySentinel]:
    """Return a primary, a replica and three sentinels."""
    yield from _serve("sentinel", ValkeySentinel, lambda setup: _valkey_version(setup.servers[0]))


@pytest.fixture(scope="session")
def cluster() -> Iterator[ValkeyCluster]:
    """Return a cluster of three nodes."""
    yield from _serve("cluster", ValkeyCluster, lambda setup: _valkey_version(setup.nodes[0]))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Our own PostgreSQL, shared by the session."""
    yield from _serve("postgres", PostgresServer, _postgres_version)


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the PostgreSQL to test with: given, our own, or in a container."""
    yield from _url(request, "postgres", "POSTGRES_URL", "postgres_server", containers.postgres)


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """Return the address of an empty database."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """Return a PostgreSQL that this test may break."""
    yield from _serve("postgres", PostgresServer, _postgres_version)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """Return pgbouncer in transaction mode in front of our own PostgreSQL."""
    yield from _serve("pgbouncer", lambda: PgBouncer(postgres_server), lambda setup: setup.version)


@pytest.fixture(scope="session")
def pgbouncer_url(pgbouncer: PgBouncer) -> str:
    """Return pgbouncer's address."""
    return pgbouncer.url


@pytest.fixture(scope="session")
def strict_kube() -> Iterator[StrictKube]:
    """Our own strict Lease API, shared by the session."""
    yield from _serve("kubernetes", StrictKube, lambda api: api.version)


@pytest.fixture
def own_strict_kube() -> Iterator[StrictKube]:
    """Return a strict Lease API that this test may break."""
    yield from _serve("kubernetes", StrictKube, lambda api: api.version)


@pytest.fixture(scope="session")
def kube_server() -> Iterator[KubeServer]:
    """Our own kube-apiserver and etcd, shared by the session: leave them running and unfrozen."""
    yield from _serve("kube-apiserver", KubeServer, lambda server: server.version)


@pytest.fixture(scope="session")
def kube_api(request: pytest.FixtureRequest) -> Iterator[GivenKube | KubeServer]:
    """Return the real API server to test with: given, our own, or in a container."""
    given = os.environ.get("KUBECONFIG")
    if given:
        api = GivenKube(given)
        _servers["kube-apiserver"] = api.version
        yield api
        return
    try:
        yield request.getfixturevalue("kube_server")
    except pytest.skip.Exception:
        yield from _serve("kube-apiserver", containers.kubernetes, lambda given: given.version)


def _url(
    request: pytest.FixtureRequest,
    variant: str,
    variable: str,
    own: str,
    container: Callable[[], AbstractContextManager[str]],
) -> Iterator[str]:
    given = os.environ.get(variable)
    if given:
        _servers[variant] = f"given by {variable}"
        yield given
        return
    try:
        server: ValkeyServer | PostgresServer = request.getfixturevalue(own)
    except pytest.skip.Exception:
        yield from _serve(variant, container, lambda _: "in a container")
        return
    yield server.url


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which variants each test belongs to, and leave out what has to be asked for."""
    for item in items:
        names = {
            VARIANT_OF_FIXTURE[name]
            for name in getattr(item, "fixturenames", ())
            if name in VARIANT_OF_FIXTURE
        }
        names |= {str(name) for mark in item.iter_markers("variant") for name in mark.args}
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            names |= {
                value
                for value in item.callspec.params.values()
                if isinstance(value, str) and value in VARIANTS
            }
        item.stash[_variants_of] = frozenset(names)
    # They take minutes, and a KUBECONFIG that is set may name somebody's own cluster.
    if not os.environ.get("GREL_TEST_KUBE"):
        unasked = [item for item in items if "kube-apiserver" in item.stash[_variants_of]]
        config.hook.pytest_deselected(items=unasked)
        items[:] = [item for item in items if "kube-apiserver" not in item.stash[_variants_of]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the report say which variants it counts for, on which servers: it may travel between processes."""
    report = yield
    decisive = report.when == "call" or (report.when == "setup" and not report.passed) or report.failed
    of_item = item.stash[_variants_of]
    variants = sorted(of_item) if decisive else []
    servers = {name: _servers[name] for name in variants if name in _servers}
    report.__dict__.update(variants=variants, servers=servers)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the outcome for the test's variants."""
    _servers.update(getattr(report, "servers", {}))
    for variant in getattr(report, "variants", []):
        _outcomes[variant][report.outcome] += 1
        if isinstance(report.longrepr, tuple):
            _skip_reasons.setdefault(variant, report.longrepr[2].removeprefix("Skipped: "))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say for each backend and variant what ran, or why nothing did."""
    terminalreporter.section("backends")
    for variant in dict.fromkeys((*VARIANTS, *_outcomes)):
        terminalreporter.line(f"{variant}: {_account(variant)}")


def _account(variant: str) -> str:
    counts = _outcomes[variant]
    ran = counts["passed"] + counts["failed"]
    if not ran:
        return f"NOT RUN ({_skip_reasons.get(variant, 'no test asked for it')})"
    parts = ", ".join(
        f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped") if counts[outcome]
    )
    server = _servers.get(variant)
    return f"{parts} ({server})" if server else parts
