"""Deletes rows that nobody used for an hour, a few at a time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import asyncpg

from grelmicro.providers._postgres.sending import is_lost

if TYPE_CHECKING:
    from grelmicro.coordination.postgres._table import Table
    from grelmicro.providers._postgres.sending import Connection, Sending

logger = logging.getLogger("grelmicro.coordination.postgres")

_CALLS = 200
"""After how many calls that may add rows it looks at some: at more than can have been added, so that it keeps
up with them, going through the table in a circle."""


class Collector:
    """Collects old rows of one table, in the wake of the calls that may add some."""

    def __init__(self, table: Table) -> None:
        self._sql = table.sql("collect")
        self._calls = 0
        self._last = ""

    def count(self, calls: int) -> None:
        """Note how many calls were sent."""
        self._calls += calls

    @property
    def is_due(self) -> bool:
        """Whether it should run."""
        return self._calls >= _CALLS

    async def run(self, sending: Sending, connection: Connection) -> bool:
        """Look at some rows, and say whether the connection is still of use. Failing is no harm."""
        self._calls = 0
        try:
            rows = await sending.fetch(connection, self._sql, self._last)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            logger.debug("Old rows could not be collected", exc_info=True)
            sending.adapt(error)
            return not is_lost(connection, error)
        self._last = rows[0]["last"] or ""
        return True
