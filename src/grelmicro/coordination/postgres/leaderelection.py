"""Elections in a table: one row per name, which keeps the count of transitions when nobody leads."""

from __future__ import annotations

import json
from datetime import UTC
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from grelmicro.coordination.abc import LeaderRecord, WakingElectionBackend
from grelmicro.coordination.postgres._adapter import PostgresAdapter, checked_duration
from grelmicro.coordination.postgres._statement import UNDECIDED, Call, Statement, Undecided
from grelmicro.providers._listening import Listening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import asyncpg

    from grelmicro.providers.postgres import PostgresProvider


class PostgresLeaderElectionAdapter(PostgresAdapter, WakingElectionBackend):
    """A `LeaderElectionBackend` on a table. Leases run by the server's clock.

    The table is created, and its old rows are deleted, as `PostgresLockAdapter` does it.
    """

    component_keyword: ClassVar[str] = "election"
    _table_template: ClassVar[str] = "leader_table"
    _forgets: ClassVar[bool] = True

    def __init__(
        self,
        *,
        provider: PostgresProvider | None = None,
        table_name: str = "grelmicro_leaders",
        schema: str = "public",
    ) -> None:
        super().__init__(provider, table_name, schema)
        sql = self._table.sql
        self._renew = Statement(many=sql("leader_renew"), decide=_decide_renew, shared=True, collects=True)
        vacancies = self._table.channel("vacancy")
        self._release = self._release_statement(and_freed="", word="{_word_of_vacancy}", vacancies=vacancies)
        self._get = Statement(many=sql("leader_get"), decide=_decide_get, shared=True)
        self._vacancies = Listening(self._provider.subscribe, self._new_channel, (vacancies,))

    @property
    @override
    def wakes(self) -> bool:
        return self._vacancies.heard

    @override
    def on_vacancy(self, name: str, wake: Callable[[], object]) -> Callable[[], None]:
        return self._vacancies.on(name, wake)

    @override
    async def acquire_or_renew(
        self, *, name: str, token: str, duration: float, metadata: Mapping[str, str] | None = None
    ) -> LeaderRecord:
        stored = json.dumps(dict(metadata or {}))
        record: LeaderRecord = await self._call(
            self._renew, name, token, token, checked_duration(duration), stored
        )
        return record

    @override
    async def release(self, *, name: str, token: str) -> bool:
        released: bool = await self._call(self._release, name, token, token)
        return released

    @override
    async def get(self, *, name: str) -> LeaderRecord | None:
        record: LeaderRecord | None = await self._call(self._get, name, None)
        return record


def _decide_renew(call: Call, row: asyncpg.Record | None) -> LeaderRecord | Literal[Undecided.UNDECIDED]:
    if row is None or (row["token"] == call.token and not row["won"]):
        return UNDECIDED
    return _record(row)


def _decide_get(_: Call, row: asyncpg.Record | None) -> LeaderRecord | None:
    return None if row is None else _record(row)


def _record(row: asyncpg.Record) -> LeaderRecord:
    return LeaderRecord(
        holder=row["token"],
        lease_duration=row["duration"],
        acquired_at=row["acquired_at"].astimezone(UTC),
        renewed_at=row["renewed_at"].astimezone(UTC),
        transitions=row["transitions"],
        metadata=json.loads(row["metadata"]),
    )
