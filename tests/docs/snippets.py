"""What the tests of the pages share: the snippets, and what they are made ready with."""

from __future__ import annotations

from pathlib import Path

import asyncpg

PAGES = Path(__file__).parents[2] / "docs"
SNIPPETS = PAGES / "snippets"


def text_of(snippet):
    return (SNIPPETS / snippet).read_text()


async def run_sql(url, script):
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        await connection.execute(script)
    finally:
        await connection.close()
