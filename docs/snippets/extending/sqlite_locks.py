"""Locks in an SQLite file, for the processes of one machine."""

import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from anyio import to_thread

_TABLE = """
CREATE TABLE IF NOT EXISTS locks (
    name TEXT PRIMARY KEY,
    token TEXT NOT NULL,
    until REAL NOT NULL,
    fence INTEGER NOT NULL
)
"""
_TAKE = """
INSERT INTO locks VALUES (:name, :token, :until, :now * 1000000)
ON CONFLICT (name) DO UPDATE SET
    token = excluded.token,
    until = excluded.until,
    fence = CASE WHEN token = excluded.token AND until > :now THEN fence
                 ELSE max(fence + 1, excluded.fence) END
WHERE token = excluded.token OR until <= :now
RETURNING CAST(fence AS INTEGER)
"""
_FREE = """
UPDATE locks SET until = 0
WHERE name = :name AND token = :token AND until > :now
RETURNING 1
"""
_HOLDER = "SELECT token FROM locks WHERE name = :name AND until > :now"


class SqliteLocks:
    call_timeout = 2.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._run(_TABLE)

    async def acquire(
        self,
        *,
        name: str,
        token: str,
        duration: float,
    ) -> int | None:
        return await self._first(_TAKE, duration, name=name, token=token)

    async def release(self, *, name: str, token: str) -> bool:
        return await self._first(_FREE, name=name, token=token) is not None

    async def locked(self, *, name: str) -> bool:
        return await self._first(_HOLDER, name=name) is not None

    async def owned(self, *, name: str, token: str) -> bool:
        return await self._first(_HOLDER, name=name) == token

    async def _first(self, sql: str, duration: float = 0, **values: str) -> Any:
        return await to_thread.run_sync(partial(self._run, sql, duration, **values))

    def _run(self, sql: str, duration: float = 0, **values: str) -> Any:
        with closing(sqlite3.connect(self._path, timeout=self.call_timeout)) as file:
            file.isolation_level = None  # transactions begin where we say
            file.execute("PRAGMA synchronous = OFF")
            file.execute("BEGIN IMMEDIATE")
            now = time.time()  # nobody else can write from here on
            times = {"now": now, "until": now + duration}
            rows = file.execute(sql, values | times).fetchall()
            file.execute("COMMIT")
        return rows[0][0] if rows else None
