"""What the tests on PostgreSQL share."""

from __future__ import annotations

import asyncpg


async def run_sql(url, sql, *arguments):
    """Run a statement on a connection of its own; return the first value of each row."""
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        return [row[0] for row in await connection.fetch(sql, *arguments)]
    finally:
        await connection.close()
