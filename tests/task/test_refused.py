"""Tasks whose server turns them away, or cannot be found: no tick runs, and the first one after it does."""

from __future__ import annotations

import socket
from pathlib import Path

import anyio
import pytest

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, TaskLock
from grelmicro.task import Tasks
from tests.task.support import Runs
from tests.task.test_on_servers import until
from tests.task.worker import provider_for

pytest.importorskip("redis")
pytest.importorskip("asyncpg")

PASSWORD = "open-sesame"
NOBODY = "nobody.invalid"


class Redis:
    """A Valkey, and the ways in which it turns away a client that was welcome, or was not yet."""

    def __init__(self, server):
        self._server = server

    def url(self, host, password=None):
        credentials = f":{password}@" if password else ""
        return f"redis://{credentials}{host}:{self._server.port}/0"

    def set_password(self, password):
        self._server.command("CONFIG", "SET", "requirepass", password)
        self._server.password = password

    def cut(self):
        self._server.command("CLIENT", "KILL", "TYPE", "normal")

    def forbid(self):
        self._server.command("ACL", "SETUSER", "default", "-@scripting")

    def allow(self):
        self._server.command("ACL", "SETUSER", "default", "+@scripting")


class Postgres:
    """The same of PostgreSQL, for a user that has to give a password."""

    def __init__(self, server):
        self._server = server
        server.execute(f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'")
        self.allow()
        rules = Path(server.execute("SHOW hba_file")[0])
        server.stop()
        rules.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.start()

    def url(self, host, password=PASSWORD):
        return f"postgresql://app:{password}@{host}:{self._server.port}/postgres"

    def set_password(self, password):
        self._server.execute(f"ALTER ROLE app PASSWORD '{password}'")

    def cut(self):
        self._server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")

    def forbid(self):
        self._server.execute("REVOKE ALL ON SCHEMA public FROM app, PUBLIC")

    def allow(self):
        self._server.execute("GRANT ALL ON SCHEMA public TO app")


class WrongPassword:
    def __init__(self, server):
        self._server = server
        server.set_password(PASSWORD)
        self.url = server.url("127.0.0.1", PASSWORD)

    def refuse(self):
        self._server.set_password("changed")
        self._server.cut()

    def admit(self):
        self._server.set_password(PASSWORD)


class WithoutRights:
    """Refuses on connections that stay open."""

    def __init__(self, server):
        self.url = server.url("127.0.0.1")
        self.refuse = server.forbid
        self.admit = server.allow


class UnknownName:
    """The system's own resolver refuses the name; that somebody gives it an address is made up."""

    def __init__(self, server, monkeypatch):
        self._server = server
        self.url = server.url(NOBODY)
        self._known = True
        resolve = socket.getaddrinfo

        def getaddrinfo(host, *arguments, **keywords):
            if self._known and host in {NOBODY, NOBODY.encode()}:
                host = "127.0.0.1"
            return resolve(host, *arguments, **keywords)

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    def refuse(self):
        self._known = False
        self._server.cut()

    def admit(self):
        self._known = True


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["redis", "postgres"])
def server(request):
    kind = {"redis": Redis, "postgres": Postgres}[request.param]
    return kind(request.getfixturevalue(f"own_{request.param}"))


@pytest.fixture(params=["password", "rights", "name"])
def gate(request, server, monkeypatch):
    if request.param == "name":
        return UnknownName(server, monkeypatch)
    return {"password": WrongPassword, "rights": WithoutRights}[request.param](server)


async def test_a_refused_task_skips_its_ticks_and_runs_the_next_one_once_admitted(gate, unique, caplog):
    runs, tasks = Runs(), Tasks()
    tasks.interval(seconds=0.2, name=unique, lock=TaskLock())(runs.body(0))
    micro = Grelmicro(uses=[Coordination(provider_for(gate.url)), tasks])
    counts = tasks.tasks[0].counts

    def failed():
        return counts.reasons.get("backend_error", 0)

    async def admitted():
        before, ran = failed(), len(runs.starts)
        await anyio.to_thread.run_sync(gate.admit)
        await until(lambda: len(runs.starts) > ran)
        assert failed() - before <= 1  # one may have been on its way

    await anyio.to_thread.run_sync(gate.refuse)
    with anyio.fail_after(4):
        async with micro:
            await until(lambda: failed() >= 1)
    assert dict(counts.outcomes) == {"skipped": failed()}  # it stopped while it was refused
    async with micro:
        before = failed()
        await until(lambda: failed() >= before + 2)
        assert not runs.starts
        assert dict(counts.reasons) == {"backend_error": failed()}
        await admitted()
        await until(lambda: len(runs.starts) >= 2)

        before = failed()
        await anyio.to_thread.run_sync(gate.refuse)
        ran = len(runs.starts)
        await until(lambda: failed() >= before + 2)
        assert len(runs.starts) <= ran + 1  # one may have begun before
        assert "busy" not in counts.reasons
        await admitted()
    assert PASSWORD not in caplog.text
