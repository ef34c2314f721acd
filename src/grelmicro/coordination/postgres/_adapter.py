"""What the adapters share: a provider, a table, and the batches on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from grelmicro.coordination._adapter import ProviderAdapter
from grelmicro.coordination._identity import random_hex
from grelmicro.coordination.postgres._batch import Batcher
from grelmicro.coordination.postgres._collector import Collector
from grelmicro.coordination.postgres._statement import UNDECIDED, Statement, Undecided
from grelmicro.coordination.postgres._table import Table
from grelmicro.providers.postgres import PostgresProvider
from grelmicro.types import MAX_SECONDS

if TYPE_CHECKING:
    import asyncio

    import asyncpg

    from grelmicro.coordination.postgres._statement import Call


class PostgresAdapter(ProviderAdapter[PostgresProvider]):
    """Base of the adapters: one table, created at the first call that misses it."""

    _table_template: ClassVar[str]
    _forgets: ClassVar[bool]
    """Whether rows unused for an hour are deleted."""

    def __init__(self, provider: PostgresProvider | None, table_name: str, schema: str) -> None:
        self._table = Table(self._table_template, table_name=table_name, schema=schema)
        super().__init__(provider)
        self._batcher: Batcher | None = None

    @classmethod
    @override
    def _new_provider(cls) -> PostgresProvider:
        return PostgresProvider()

    def schema_sql(self) -> str:
        """Return the SQL that creates what this adapter needs, for users who may not create it.

        It is harmless to run again. The user then needs `USAGE` on the schema, and `SELECT`, `INSERT`,
        `UPDATE` and `DELETE` on the table.
        """
        return self._table.schema_sql

    def _new_channel(self) -> str:
        """Return a channel that no other adapter listens to."""
        return f"grelmicro_{random_hex()}"

    def _release_statement(self, **parts: str) -> Statement:
        """Build the release of what has a lease; a channel may be given with the name and the token."""
        wordless = self._release_statement(**(parts | {"word": "NULL"})) if parts["word"] != "NULL" else None
        return Statement(
            many=self._table.sql("release", me="($3::text[])[1]", **parts),
            one=self._table.sql("release_one", me="$3::text", **parts),
            decide=_decide_release,
            droppable=False,
            wordless=wordless,
        )

    def _call(
        self, statement: Statement, name: str, token: str | None, *arguments: Any
    ) -> asyncio.Future[Any]:
        connections = self._provider.connections
        batcher = self._batcher
        if batcher is None or batcher.connections is not connections:
            collector = Collector(self._table) if self._forgets else None
            batcher = self._batcher = Batcher(connections, self._table, collector)
        return batcher.call(statement, name, token, *arguments)


def _decide_release(call: Call, row: asyncpg.Record | None) -> bool | Literal[Undecided.UNDECIDED]:
    if row is None:
        return call.resent  # after a lost reply it has been released, or has lapsed
    return True if row["released"] else UNDECIDED


def checked_duration(duration: float) -> float:
    """Return a duration that the server can add to its clock.

    Raises:
        ValueError: it is no positive, finite number of at most `MAX_SECONDS`.
    """
    if not 0 < duration <= MAX_SECONDS:
        raise ValueError(f"duration: must be a number above 0 and at most {MAX_SECONDS}")
    return float(duration)
