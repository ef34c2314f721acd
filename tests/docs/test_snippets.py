"""Every program, script and setting that the pages show is run, and does what the page says."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from grelmicro import OutOfContextError
from grelmicro.coordination import LeaderElection, Lock, TaskLock
from grelmicro.providers.redis import RedisProvider
from grelmicro.testing import VirtualClockLoop
from tests.docs.snippets import SNIPPETS, run_sql, text_of

REDIS = "redis://localhost:6379/0"
POSTGRES = "postgresql://localhost/shop"
PGBOUNCER = "postgresql://pgbouncer.example:6432/shop"

PRINTS = "# Prints:\n"
PROGRAMS = sorted(
    str(path.relative_to(SNIPPETS)) for path in SNIPPETS.glob("*/*.py") if PRINTS in path.read_text()
)
BY_SIGNAL = "tasks/sigterm.py"
OTHERS = {
    "app/lifespan.py",
    "backends/pgbouncer.ini",
    "backends/postgres_addresses.py",
    "backends/postgres_grants.sql",
    "backends/postgres_schema.py",
    "backends/postgres_tables.sql",
    "backends/redis.conf",
    "backends/redis_acl.txt",
    "backends/redis_addresses.py",
    "configuration/environment.sh",
    "extending/sqlite_locks.py",
    "extending/test_sqlite_locks.py",
    "lock/fencing.sql",
    "testing/shop.py",
    "testing/test_shop.py",
}
"""What is no program of its own: each has a test below, or a module of its own beside this one."""


@pytest.fixture(autouse=True)
def environment():
    before = dict(os.environ)
    for name in before:
        if name.startswith(("GREL_", "REDIS_", "POSTGRES_")):
            del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


def printed_by(snippet):
    lines = text_of(snippet).partition(PRINTS)[2].splitlines()
    assert all(line.startswith("#   ") for line in lines)
    return [line.removeprefix("#   ") for line in lines]


def check_output(snippet, output):
    expected = printed_by(snippet)
    lines = output.splitlines()
    assert len(lines) == len(expected), output
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(re.escape(pattern).replace(re.escape("..."), ".*"), line), (pattern, line)


def test_nothing_is_shown_that_is_not_run_here():
    shown = {str(path.relative_to(SNIPPETS)) for path in SNIPPETS.glob("*/*") if path.is_file()}
    assert shown == {*PROGRAMS, *OTHERS}


@pytest.mark.parametrize("snippet", [one for one in PROGRAMS if one != BY_SIGNAL])
def test_a_program_prints_what_it_says(snippet, request, monkeypatch, tmp_path, capsys):
    text = text_of(snippet)
    if PGBOUNCER in text or POSTGRES in text:
        database = request.getfixturevalue("postgres_database")
        tables = SNIPPETS / Path(snippet).with_suffix(".sql")
        if tables.exists():
            asyncio.run(run_sql(database, tables.read_text()))
        text = text.replace(POSTGRES, database)
        if PGBOUNCER in text:
            pgbouncer = request.getfixturevalue("pgbouncer")
            text = text.replace(PGBOUNCER, pgbouncer.url_of(database.rpartition("/")[2]))
    if REDIS in text:
        text = text.replace(REDIS, request.getfixturevalue("redis_url"))
    if text == text_of(snippet):  # no server, so no need to wait
        monkeypatch.setattr(
            anyio, "run", partial(anyio.run, backend_options={"loop_factory": VirtualClockLoop})
        )
    program = tmp_path / "program.py"
    program.write_text(text)
    runpy.run_path(str(program), run_name="__main__")
    check_output(snippet, capsys.readouterr().out)


def test_a_program_stops_in_good_order_on_a_signal():
    with subprocess.Popen(
        [sys.executable, "-W", "error", SNIPPETS / BY_SIGNAL], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            first = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    check_output(BY_SIGNAL, first + rest)


async def test_a_lifespan_opens_the_app_for_handlers_in_other_contexts():
    shop = runpy.run_path(str(SNIPPETS / "app/lifespan.py"))
    ready, stop = asyncio.Event(), asyncio.Event()

    async def serve():
        async with shop["lifespan"](None):
            ready.set()
            await stop.wait()

    server = asyncio.create_task(serve())
    await ready.wait()
    assert await asyncio.create_task(shop["buy"]()) == "sold"
    # What the page warns of: a lock that looks for the active app finds none in a handler.
    with pytest.raises(OutOfContextError, match="found no active app"):
        await Lock("stock").acquire()
    stop.set()
    await server


def test_the_settings_in_the_environment_are_read(monkeypatch):
    for line in text_of("configuration/environment.sh").splitlines():
        command, assignment = shlex.split(line)
        assert command == "export"
        monkeypatch.setenv(*assignment.split("=", 1))
    assert Lock("stock").config.lease_duration == 10
    assert Lock("default").config.lease_duration == 20
    assert Lock("prices").config.lease_duration == 60
    assert TaskLock().config.lease_duration == 600
    assert LeaderElection("mailer").config.lease_duration == 30
    assert REDIS in repr(RedisProvider())
